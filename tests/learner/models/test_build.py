"""A run's models as they are started and resumed: critics, references, optimizers."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from services.learner.data.batch import ExperienceBatch, collate
from services.learner.distributed import full_optimizer_state, full_state
from services.learner.models.actor_critic import ActorCritic, build_optimizer
from services.learner.models.build import build
from services.learner.models.critic import Critic
from services.learner.models.policy import load_policy
from services.learner.models.scores import score_completions
from services.learner.models.snapshot import Snapshot, policy_weights
from services.learner.models.trunk import TrunkCritic
from tests.learner.samples import ALONE, make_groups, save_tiny_llama, settings_for, train_for

LORA = {"rank": 3, "alpha": 6}
KINDS: dict[str, dict[str, Any]] = {
    "full": {},
    "lora": {"lora": LORA},
    "both lora": {"lora": LORA, "critic_lora": LORA},
    "lora with dropout": {"lora": {**LORA, "dropout": 0.3}},
    "shared trunk": {"critic": {"trunk": "policy"}},
    "lora on a shared trunk": {"lora": LORA, "critic": {"trunk": "policy"}},
    "without a critic": {"advantage_estimator": "rloo"},
    "refreshed reference": {"reference_refresh_every": 1},
    "refreshed reference with lora": {"lora": LORA, "reference_refresh_every": 1},
    "recomputed activations": {"gradient_checkpointing": True, "lora": LORA},
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def batch() -> ExperienceBatch:
    return collate(make_groups(4, 2))


def logprobs(model: PreTrainedModel, batch: ExperienceBatch) -> Tensor:
    with torch.no_grad():
        return score_completions(model, batch, 1.0, "float32").logprobs


def reference_of(models: ActorCritic, batch: ExperienceBatch) -> Tensor:
    with torch.no_grad():
        found = models.reference_logprobs(batch, 1.0, "float32")
    assert found is not None
    return found


def everything(models: ActorCritic) -> dict[str, Tensor]:
    state = full_state(models.policy)
    if isinstance(models.critic, Critic):
        state |= {f"critic {k}": v for k, v in full_state(models.critic).items()}
    if isinstance(models.reference, PreTrainedModel):
        state |= {f"reference {k}": v for k, v in full_state(models.reference).items()}
    for name, model, optimizer in models.optimizers():
        state |= {f"{name} {k}": v for k, v in full_optimizer_state(model, optimizer).items()}
    return state


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(kind: str, path: Path, tmp_path: Path) -> None:
    settings = settings_for(path, **KINDS[kind])
    refresh = settings.learner.reference_refresh_every > 0

    def steps(models: ActorCritic, first: int, last: int) -> None:
        models.set_learning_rates(1e-2, 1e-2)
        for step in range(first, last):
            train_for(models, settings.learner, step, step + 1)
            if refresh:
                models.refresh_reference()

    straight, broken = (build(settings, ALONE, None) for _ in range(2))
    steps(straight, 0, 2)
    steps(broken, 0, 1)
    Snapshot.take(broken, with_reference=refresh).write(tmp_path)
    resumed = build(settings, ALONE, tmp_path)
    steps(resumed, 1, 2)
    expected, found = everything(straight), everything(resumed)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert torch.equal(value, found[name]), name
    published = policy_weights(resumed)
    assert published.keys() == full_state(load_policy(path)).keys()


def test_after_a_resume_the_reference_is_still_the_model_the_run_started_from(
    path: Path, batch: ExperienceBatch, tmp_path: Path
) -> None:
    """ColossalChat loads the trained actor as the reference, and the distance starts anew at zero."""
    for kind in ("full", "lora"):
        settings = settings_for(path, **KINDS[kind])
        models = build(settings, ALONE, None)
        train_for(models, settings.learner, 0, 2)
        Snapshot.take(models).write(tmp_path / kind)
        resumed = build(settings, ALONE, tmp_path / kind)
        start = logprobs(load_policy(path), batch)
        assert torch.equal(reference_of(resumed, batch), start)
        assert not torch.allclose(logprobs(resumed.policy, batch), start, atol=1e-2)


@pytest.mark.parametrize("kind", ["refreshed reference", "refreshed reference with lora"])
def test_a_refreshed_reference_is_the_policy_of_that_moment_and_survives_a_resume(
    kind: str, path: Path, batch: ExperienceBatch, tmp_path: Path
) -> None:
    settings = settings_for(path, **KINDS[kind])
    models = build(settings, ALONE, None)
    assert torch.equal(reference_of(models, batch), logprobs(load_policy(path), batch))
    train_for(models, settings.learner, 0, 1)
    models.refresh_reference()
    moment = logprobs(models.policy, batch)
    train_for(models, settings.learner, 1, 2)
    assert torch.equal(reference_of(models, batch), moment)
    assert not torch.allclose(logprobs(models.policy, batch), moment, atol=1e-2)
    Snapshot.take(models, with_reference=True).write(tmp_path)
    assert torch.equal(reference_of(build(settings, ALONE, tmp_path), batch), moment)


def test_the_reference_can_be_another_model_or_none(
    path: Path, batch: ExperienceBatch, tmp_path: Path
) -> None:
    other = save_tiny_llama(tmp_path, seed=7)
    for kind in ("full", "lora"):
        models = build(settings_for(path, reference_path=other, **KINDS[kind]), ALONE, None)
        assert torch.equal(reference_of(models, batch), logprobs(load_policy(other), batch))
    settings = settings_for(path, reference="none", kl_coef=0)
    models = build(settings, ALONE, None)
    assert models.reference is None and models.reference_logprobs(batch, 1.0, "float32") is None
    assert train_for(models, settings.learner, 0, 1)["objective/kl"] == 0


@pytest.mark.parametrize(
    ("learner", "message"),
    [
        ({"reference": "none"}, "set kl_coef to 0"),
        ({"reference": "none", "kl_coef": 0, "reference_path": "elsewhere"}, "reference_path"),
        ({"reference_path": "elsewhere", "reference_refresh_every": 2}, "give one of them"),
        ({"critic": {"trunk": "policy"}, "critic_lora": {}}, "critic.trunk = 'own'"),
        ({"critic": {"trunk": "policy"}, "critic_warmup_steps": 2}, "critic_warmup_steps"),
        ({"adam_betas": [0.9, 1.0]}, "below 1"),
        ({"advantage_estimator": "rloo", "critic_lora": {}}, "trains no critic"),
    ],
)
def test_models_that_do_not_fit_together_are_refused(learner: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        settings_for(Path("model"), **learner)


def test_a_critic_starts_from_its_own_folder(path: Path, batch: ExperienceBatch, tmp_path: Path) -> None:
    reward_model = AutoModelForSequenceClassification.from_pretrained(path, num_labels=1)
    torch.nn.init.normal_(reward_model.score.weight)
    reward_model.save_pretrained(tmp_path)
    models = build(settings_for(path, critic={"path": tmp_path}), ALONE, None)
    assert isinstance(models.critic, Critic)
    assert torch.equal(models.critic.head.weight, reward_model.score.weight)


def test_a_folder_without_a_whole_model_is_named(path: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot be loaded as a causal language model"):
        build(settings_for(tmp_path), ALONE, None)
    with pytest.raises(ValueError, match=r"nowhere is not a folder"):
        build(settings_for(path, reference_path=tmp_path / "nowhere"), ALONE, None)
    damaged = Path(shutil.copytree(path, tmp_path / "damaged"))
    (damaged / "model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(ValueError, match=r"damaged cannot be loaded as a critic's backbone"):
        build(settings_for(path, critic={"path": damaged}), ALONE, None)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"holds an adapter where a causal language model is expected"):
        build(settings_for(tmp_path), ALONE, None)


def test_adam_has_the_configured_numbers_and_spares_vectors_from_weight_decay(path: Path) -> None:
    settings = settings_for(path, weight_decay=0.3, adam_betas=[0.8, 0.95], adam_eps=1e-6)
    models = build(settings, ALONE, None)
    assert models.critic_optimizer
    for optimizer in (models.policy_optimizer, models.critic_optimizer):
        for group in optimizer.param_groups:
            assert group["betas"] == (0.8, 0.95) and group["eps"] == 1e-6
            assert {p.ndim >= 2 for p in group["params"]} == {group["weight_decay"] == 0.3}
        decays = [group["weight_decay"] for group in optimizer.param_groups]
        assert sorted(decays) == [0.0, 0.3]


def test_norms_do_not_shrink_where_matrices_do(path: Path) -> None:
    policy = load_policy(path)
    before = full_state(policy)
    optimizer = build_optimizer(policy, learning_rate=0.1, weight_decay=0.5)
    for parameter in policy.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, value in full_state(policy).items():
        torch.testing.assert_close(value, before[name] * (1.0 if "norm" in name else 0.95))


def test_the_head_on_a_shared_trunk_has_the_critics_learning_rate(path: Path) -> None:
    models = build(settings_for(path, critic={"trunk": "policy"}), ALONE, None)
    models.set_learning_rates(policy=0.25, critic=0.5)
    assert isinstance(models.critic, TrunkCritic)
    head = {id(p) for p in models.critic.head.parameters()}
    for group in models.policy_optimizer.param_groups:
        assert {id(p) in head for p in group["params"]} == {group["lr"] == 0.5}
    assert models.critic_optimizer is None


@pytest.fixture(params=["float32", "bfloat16"])
def precision(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_recomputed_activations_give_the_same_gradients(
    path: Path, batch: ExperienceBatch, precision: Any
) -> None:
    """And each block really runs again in the backward pass, with dropout still off."""
    gradients, passes = [], []
    for recompute in (False, True):
        settings = settings_for(path, gradient_checkpointing=recompute)
        models = build(settings, ALONE, None)
        count = _count_passes(models.policy)
        score_completions(models.policy, batch, 1.0, precision).logprobs.sum().backward()
        passes.append(count())
        gradients.append({n: p.grad for n, p in models.policy.named_parameters() if p.grad is not None})
        assert not models.policy.training
    assert passes == [2, 4] and len(gradients[0]) == len(list(models.policy.parameters()))
    for name, gradient in gradients[0].items():
        assert torch.equal(gradient, gradients[1][name]), name


def _count_passes(policy: PreTrainedModel) -> Callable[[], int]:
    """How often the blocks' attention ran since now."""
    ran: list[int] = []
    for block in policy.model.layers:
        block.self_attn.register_forward_hook(lambda *_: ran.append(1))
    return lambda: len(ran)
