import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from services.learner.data.batch import ExperienceBatch, collate
from services.learner.distributed import full_state
from services.learner.models.actor_critic import ActorCritic
from services.learner.models.scores import completion_values, score_completions
from tests import oracles
from tests.learner.samples import (
    SETTINGS,
    changed,
    make_groups,
    own_critic,
    own_reference,
    run_update,
    unpadded,
)

TRL_NAMES = {
    "objective/kl",
    "objective/entropy",
    "objective/non_score_reward",
    "objective/rlhf_reward",
    "objective/scores",
    "policy/approxkl_avg",
    "policy/clipfrac_avg",
    "policy/entropy_avg",
    "loss/policy_avg",
    "loss/value_avg",
    "val/clipfrac_avg",
    "val/ratio",
    "val/ratio_var",
    "val/num_eos_tokens",
}
"""TRL's 17 without `eps`, `lr` and `episode`, which belong to the run."""


def parameters(actor_critic: ActorCritic) -> dict[str, Tensor]:
    return full_state(actor_critic.policy) | full_state(own_critic(actor_critic))


def assert_close(first: ActorCritic, second: ActorCritic, tolerance: float = 1e-5) -> None:
    other = parameters(second)
    for name, value in parameters(first).items():
        torch.testing.assert_close(value, other[name], atol=tolerance, rtol=0)


def nudge_reference(actor_critic: ActorCritic) -> None:
    """Move the reference away, so that the distance to it is not zero."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in own_reference(actor_critic).parameters():
            parameter.add_(torch.randn_like(parameter) * 0.03)


def test_the_first_step_of_an_update_matches_the_oracle(fresh: Callable[[], ActorCritic]) -> None:
    actor_critic, batch = fresh(), collate(make_groups(3, 3))
    nudge_reference(actor_critic)
    settings = changed(kl_estimator="k3", temperature=0.8, reward_scale=0.1, gamma=0.99)
    with torch.no_grad():
        old, ref = (
            score_completions(m, batch, 0.8, "float32").logprobs
            for m in (actor_critic.policy, own_reference(actor_critic))
        )
        values = completion_values(own_critic(actor_critic), batch, "float32")

    metrics = run_update(actor_critic, batch, settings, policy_version=0, seed=0)

    old_rows, ref_rows, value_rows = (unpadded(x, batch.completion_mask) for x in (old, ref, values))
    kl = oracles.kl(old_rows, ref_rows, "k3")
    scores = [float(r) * 0.1 for r in batch.rewards]
    rewards = oracles.shaped_rewards(scores, kl, settings.kl_coef)
    advantages = oracles.advantages(rewards, value_rows, 0.99, 0.95)
    returns = [
        [a + v for a, v in zip(*pair, strict=True)] for pair in zip(advantages, value_rows, strict=True)
    ]
    tokens = int(batch.completion_mask.sum())
    loss, _, _, _ = oracles.policy_loss(old_rows, old_rows, oracles.whitened(advantages), 0.2, 0.2)
    vloss, _ = oracles.value_loss(value_rows, value_rows, returns, 0.2)
    penalty = sum(map(sum, kl)) / len(batch)
    expected = {
        "loss/policy_avg": loss / tokens,
        "loss/value_avg": vloss / tokens,
        "objective/kl": penalty,
        "objective/non_score_reward": -settings.kl_coef * penalty,
        "objective/scores": sum(scores) / len(scores),
        "objective/rlhf_reward": sum(scores) / len(scores) - settings.kl_coef * penalty,
        "objective/entropy": -sum(map(sum, old_rows)) / len(batch),
        "val/num_eos_tokens": float(batch.stopped.sum()),
    }
    assert penalty > 0.01
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, abs=1e-5)


def test_the_ratio_is_one_while_the_weights_are_the_old_ones(fresh: Callable[[], ActorCritic]) -> None:
    """Also when micro-batches differ from those that the old logprobs came from."""
    batch = collate(make_groups(6, 2))
    metrics = run_update(fresh(), batch, changed(minibatches=3, epochs=2, micro_batch_tokens=50), 0, seed=0)
    assert metrics["val/ratio_first"] == pytest.approx(1, abs=1e-4)
    assert metrics["val/ratio_max"] > 1.001
    assert metrics["steps/optimizer"] == 6 and metrics["steps/skipped"] == 0


def test_trl_names_and_our_own_are_reported_as_finite_numbers(fresh: Callable[[], ActorCritic]) -> None:
    batch = collate(make_groups(4, 2))
    metrics = run_update(fresh(), batch, SETTINGS, 0, seed=0)
    assert metrics.keys() >= TRL_NAMES
    assert all(math.isfinite(value) for value in metrics.values()), metrics
    assert metrics["tokens/completion"] == int(batch.completion_mask.sum())
    assert metrics["tokens/trained"] == int(batch.lengths.sum())
    assert metrics["completions/cut_fraction"] == float((~batch.stopped).float().mean())


def test_the_gap_to_the_engine_is_measured_on_completion_tokens(fresh: Callable[[], ActorCritic]) -> None:
    actor_critic, batch = fresh(), collate(make_groups(4, 2))
    with torch.no_grad():
        ours = score_completions(actor_critic.policy, batch, 1.0, "float32").logprobs
    off_by_one = ours.clone()
    off_by_one[0, 0] -= 0.5
    metrics = run_update(actor_critic, replace(batch, rollout_logprobs=off_by_one), SETTINGS, 0, seed=0)
    assert metrics["logprob_gap/max"] == pytest.approx(0.5, abs=1e-4)
    assert metrics["logprob_gap/mean"] == pytest.approx(0.5 / int(batch.completion_mask.sum()), abs=1e-5)


def test_in_bfloat16_the_gap_to_the_engine_is_still_measured_in_float32(
    fresh: Callable[[], ActorCritic],
) -> None:
    actor_critic, batch = fresh(), collate(make_groups(4, 2))
    with torch.no_grad():
        ours = score_completions(actor_critic.policy, batch, 1.0, "float32").logprobs
    batch = replace(batch, rollout_logprobs=ours)
    metrics = run_update(actor_critic, batch, changed(precision="bfloat16"), 0, seed=0)
    assert metrics["logprob_gap/max"] < 1e-5
    assert metrics["val/ratio_first"] == pytest.approx(1, abs=1e-3)


OF_SEQUENCES: dict[str, object] = {
    "loss_mean": "sequence",
    "ratio_level": "sequence",
    "kl_in": "loss",
    "kl_estimator": "k3",
    "correction": {"weight": "sequence", "mask": "geometric", "mask_low": 0.1, "mask_high": 5.0},
    "epochs": 2,
}
APPROXIMATED: dict[str, object] = {
    "correction": {"proximal": "loglinear"},
    "loss_mean": "sequence",
    "epochs": 2,
}


@pytest.mark.parametrize("options", [{}, OF_SEQUENCES, APPROXIMATED], ids=["plain", "sequences", "loglinear"])
@pytest.mark.parametrize("change", ["small micro-batches", "more padding", "another order"])
def test_a_step_depends_on_the_completions_alone(
    fresh: Callable[[], ActorCritic], change: str, options: dict[str, object]
) -> None:
    batch, settings = collate(make_groups(5, 3)), changed(entropy_coef=0.01, **options)
    plain, other = fresh(), fresh()
    for models in (plain, other):
        nudge_reference(models)
    run_update(plain, batch, settings, 1, seed=0)
    if change == "small micro-batches":
        settings = settings.model_copy(update={"micro_batch_tokens": 30})
    elif change == "another order":
        batch = batch.rows(torch.randperm(len(batch), generator=torch.Generator().manual_seed(5)).tolist())
    else:
        batch = widened(batch)
    run_update(other, batch, settings, 1, seed=0)
    assert_close(plain, other)


def widened(batch: ExperienceBatch) -> ExperienceBatch:
    def pad(x: Tensor, value: float) -> Tensor:
        return torch.nn.functional.pad(x, (0, 4), value=value)

    return replace(
        batch,
        input_ids=pad(batch.input_ids, 5),
        completion_mask=pad(batch.completion_mask, False),
        rollout_logprobs=pad(batch.rollout_logprobs, 7.0),
        token_versions=pad(batch.token_versions, 9),
        step_rewards=pad(batch.step_rewards, 3.0),
    )


def test_the_same_seed_gives_the_same_parameters_and_another_seed_others(
    fresh: Callable[[], ActorCritic],
) -> None:
    batch, settings = collate(make_groups(4, 3)), changed(minibatches=3)
    first, second, third = fresh(), fresh(), fresh()
    for actor_critic, seed in ((first, 1), (second, 1), (third, 2)):
        run_update(actor_critic, batch, settings, 0, seed)
    assert_close(first, second, tolerance=0)
    with pytest.raises(AssertionError):
        assert_close(first, third)


def test_an_entropy_bonus_keeps_the_policy_undecided(fresh: Callable[[], ActorCritic]) -> None:
    batch = collate(make_groups(4, 2))
    batch = replace(batch, rewards=torch.zeros(len(batch)))
    settings = changed(entropy_coef=1.0, kl_coef=0.0, whiten_advantages=False, epochs=10)
    actor_critic = fresh()

    @torch.no_grad()
    def entropy() -> float:
        return float(score_completions(actor_critic.policy, batch, 1.0, "float32").entropy.sum())

    before = entropy()
    run_update(actor_critic, batch, settings, 0, seed=0)
    assert entropy() > 1.01 * before


def test_a_gradient_that_is_not_finite_skips_the_step_and_is_counted(
    fresh: Callable[[], ActorCritic], caplog: pytest.LogCaptureFixture
) -> None:
    actor_critic, batch = fresh(), collate(make_groups(3, 2))
    before = parameters(actor_critic)
    broken = replace(batch, rewards=batch.rewards.clone())
    broken.rewards[0] = 1e38
    metrics = run_update(actor_critic, broken, changed(whiten_advantages=False), 0, seed=0)
    assert metrics["steps/skipped"] == 1
    assert "optimizer step skipped" in caplog.text
    for name, value in parameters(actor_critic).items():
        assert torch.equal(value, before[name]), name
    assert run_update(actor_critic, batch, SETTINGS, 0, seed=0)["steps/skipped"] == 0


def test_a_batch_whose_rewards_are_all_zero_passes(fresh: Callable[[], ActorCritic]) -> None:
    batch = collate(make_groups(3, 2))
    metrics = run_update(fresh(), replace(batch, rewards=torch.zeros(6)), SETTINGS, 0, seed=0)
    assert all(math.isfinite(value) for value in metrics.values())
    assert metrics["steps/skipped"] == 0


def test_the_gradient_is_clipped_to_its_norm(fresh: Callable[[], ActorCritic]) -> None:
    """Plain gradient descent at rate 1 moves the policy exactly as far as the clipped norm."""
    actor_critic, batch = fresh(), collate(make_groups(4, 2))
    actor_critic = replace(
        actor_critic,
        policy_optimizer=torch.optim.SGD(actor_critic.policy.parameters(), lr=1.0),
        critic_optimizer=torch.optim.SGD(own_critic(actor_critic).parameters(), lr=1.0),
    )
    before = full_state(actor_critic.policy)
    metrics = run_update(actor_critic, batch, changed(max_grad_norm=1e-3), 0, seed=0)
    moved = [value - before[name] for name, value in full_state(actor_critic.policy).items()]
    assert metrics["grad_norm/policy"] > 1e-2
    assert float(torch.nn.utils.get_total_norm(moved)) == pytest.approx(1e-3, rel=1e-2)


def test_rewarding_a_token_makes_it_likelier_and_the_critic_foresees_it(
    fresh: Callable[[], ActorCritic],
) -> None:
    """Ten real updates on samples of our own: one token pays 1, the others nothing."""
    actor_critic, wanted = fresh(), 4
    torch.manual_seed(0)
    prompt = torch.tensor([[2, 3, 5]])
    settings = changed(epochs=2, kl_coef=0.0, value_clip=10.0)

    def chance() -> float:
        with torch.no_grad():
            return float(actor_critic.policy(prompt).logits[0, -1].softmax(-1)[wanted])

    before, template = chance(), collate(make_groups(1, 64))
    for step in range(10):
        with torch.no_grad():
            logits = actor_critic.policy(prompt).logits[0, -1]
        tokens = torch.multinomial(logits.softmax(-1), 64, replacement=True)
        batch = replace(
            template,
            input_ids=torch.cat([prompt.expand(64, 3), tokens[:, None]], dim=1),
            prompt_lengths=torch.full((64,), 3),
            completion_mask=torch.ones(64, 1, dtype=torch.bool),
            rollout_logprobs=logits.log_softmax(-1)[tokens][:, None],
            token_versions=torch.zeros(64, 1, dtype=torch.long),
            rewards=(tokens == wanted).float(),
        )
        metrics = run_update(actor_critic, batch, settings, 0, seed=step)
        assert metrics["logprob_gap/max"] < 1e-4
    assert before < 0.2 and chance() > 2 * before
    with torch.no_grad():
        value = float(completion_values(own_critic(actor_critic), batch, "float32").mean())
    assert value == pytest.approx(metrics["reward/mean"], abs=0.2)
