"""A value head on the policy's own trunk."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from services.learner.data.batch import ExperienceBatch, collate
from services.learner.distributed import full_state
from services.learner.models.actor_critic import ActorCritic
from services.learner.models.build import build
from services.learner.models.critic import load_critic
from services.learner.models.policy import load_policy
from services.learner.models.scores import (
    TokenScores,
    completion_values,
    final_values,
    score_completions,
    scores_with_values,
)
from services.learner.models.snapshot import policy_weights
from services.learner.models.trunk import TrunkCritic
from services.learner.models.value_head import save_value_head
from tests.learner.models.test_models import prefixes, save_gpt2, save_qwen3
from tests.learner.samples import ALONE, make_groups, save_tiny_llama, settings_for, train_for

SHARED = {"critic": {"trunk": "policy"}}


@pytest.fixture(scope="module", params=[save_tiny_llama, save_gpt2, save_qwen3])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return request.param(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def batch() -> ExperienceBatch:
    return collate(make_groups(4, 2))


def shared(path: Path) -> tuple[ActorCritic, TrunkCritic]:
    models = build(settings_for(path, **SHARED), ALONE, None)
    assert isinstance(models.critic, TrunkCritic)
    torch.manual_seed(1)
    torch.nn.init.normal_(models.critic.head.weight)
    return models, models.critic


def policy_loss(scores: TokenScores) -> Tensor:
    return scores.logprobs.square().sum()


def value_loss(values: Tensor) -> Tensor:
    return 0.3 * (values - 1).square().sum()


@torch.no_grad()
def test_logprobs_are_the_policys_and_values_those_of_its_last_hidden_states(
    path: Path, batch: ExperienceBatch
) -> None:
    models, critic = shared(path)
    scores, values = models.scores_and_values(batch, 0.7, "float32")
    alone = score_completions(load_policy(path), batch, 0.7, "float32")
    assert torch.equal(scores.logprobs, alone.logprobs) and torch.equal(scores.entropy, alone.entropy)
    assert values is not None
    assert torch.equal(values, completion_values(critic, batch, "float32"))
    for row in range(len(batch)):
        for t, prefix in enumerate(prefixes(batch, row)):
            hidden = models.policy.base_model(prefix).last_hidden_state[0, -1]
            expected = float(critic.head(hidden))
            assert float(values[row, t]) == pytest.approx(expected, abs=1e-4)
    assert not values[~batch.completion_mask].any()
    assert final_values(critic, batch, "float32").shape == (len(batch),)


@torch.no_grad()
def test_in_bfloat16_the_value_head_still_computes_in_float32(path: Path, batch: ExperienceBatch) -> None:
    trunk = shared(path)[1]
    own = load_critic(path)
    for critic in (trunk, own):
        critic.head.weight.zero_()
        critic.head.bias.fill_(0.123456)
        values = completion_values(critic, batch, "bfloat16")
        assert values[batch.completion_mask].unique().tolist() == [pytest.approx(0.123456, abs=1e-8)]


def test_one_backward_pass_gives_the_sum_of_both_losses_gradients(path: Path, batch: ExperienceBatch) -> None:
    models, _ = shared(path)
    models.backward(batch, 1.0, "float32", policy_loss=policy_loss, value_loss=value_loss)
    both = {n: p.grad.clone() for n, p in models.policy.named_parameters() if p.grad is not None}
    summed = dict.fromkeys(both, torch.zeros(()))
    for loss in (
        lambda scores, _: policy_loss(scores),
        lambda _, values: value_loss(values),
    ):
        models.policy.zero_grad()
        loss(*scores_with_values(models.policy, batch, 1.0, "float32")).backward()
        for name, parameter in models.policy.named_parameters():
            if parameter.grad is not None:
                summed[name] = summed[name] + parameter.grad
    assert "value_head.weight" in both and both["value_head.weight"].any()
    for name, gradient in both.items():
        torch.testing.assert_close(gradient, summed[name], atol=1e-4, rtol=1e-4)


def test_both_losses_reach_the_trunk_and_the_run_is_published_without_the_head(path: Path) -> None:
    models, _ = shared(path)
    before = full_state(models.policy)
    metrics = train_for(models, settings_for(path, **SHARED).learner, 0, 2)
    assert metrics["loss/value_avg"] > 0 and metrics["grad_norm/policy"] > 0
    after = full_state(models.policy)
    assert not torch.equal(before["value_head.weight"], after["value_head.weight"])
    assert policy_weights(models).keys() == full_state(load_policy(path)).keys()


def test_the_head_starts_from_a_file_of_trl_or_llama_factory(path: Path, tmp_path: Path) -> None:
    weight = torch.randn(1, 24)
    save_value_head(weight, torch.tensor([0.5]), tmp_path)
    models = build(settings_for(path, critic={"trunk": "policy", "path": tmp_path}), ALONE, None)
    assert isinstance(models.critic, TrunkCritic)
    assert torch.equal(models.critic.head.weight, weight)
    assert models.critic.head.bias.tolist() == [0.5]
    with pytest.raises(ValueError, match="has no value head"):
        build(settings_for(path, critic={"trunk": "policy", "path": path}), ALONE, None)
