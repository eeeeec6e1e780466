"""What each option of the algorithm does to an update. Shapes and maths have tests of their own."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from services.learner import ppo
from services.learner.algorithm.advantages import CRITIC_FREE
from services.learner.algorithm.rewards import RunningMoments
from services.learner.algorithm.state import AlgorithmState
from services.learner.config.algorithm import AlgorithmConfig
from services.learner.data.batch import ExperienceBatch
from services.learner.distributed import full_state
from services.learner.models.actor_critic import ActorCritic
from services.learner.models.scores import completion_values, final_values
from services.learner.targets import Targets, evaluate, final_scores, make_targets, step_scores
from services.learner.train import resumed_state
from tests.learner.samples import SETTINGS, changed, moved, own_critic, own_reference, run_update


def targets_of(models: ActorCritic, batch: ExperienceBatch, config: AlgorithmConfig) -> Targets:
    scores, _ = final_scores(batch, config, RunningMoments())
    return make_targets(batch, evaluate(models, batch, config), scores, config, config.kl_coef, 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"clip_low": 0.001, "clip_high": 0.001, "epochs": 4},
        {"dual_clip": 1.01, "epochs": 4},
        {"ratio_clamp": 1.01, "epochs": 4},
        {"ratio_level": "sequence", "epochs": 2},
        {"loss_mean": "sequence"},
        {"entropy_coef": 0.5},
        {"kl_in": "loss", "kl_estimator": "k2", "kl_coef": 5.0, "epochs": 2},
        {"kl_in": "loss", "kl_estimator": "k3", "kl_coef": 5.0, "epochs": 2},
        {"score_placement": "every"},
        {"reward_clip": 0.1},
        {"missing_eos_penalty": 2.0},
        {"whiten_rewards": True},
        {"whiten_advantages": False},
        {"whiten_shift_mean": False},
        {"advantage_estimator": "grpo"},
        {"advantage_estimator": "rloo"},
        {"advantage_estimator": "reinforce_plus_plus"},
        {"truncation": "bootstrap"},
        {"update_steps": 1, "epochs": 2},
        {"critic_warmup_steps": 1},
        {"score_normalization": "normalize", "whiten_advantages": False},
    ],
    ids=lambda changes: "{}={}".format(*next(iter(changes.items()))),
)
def test_an_option_changes_the_update(
    fresh: Callable[[], ActorCritic], batch: ExperienceBatch, changes: dict[str, object]
) -> None:
    _, *beside = changes
    plain = {key: changes[key] for key in beside}
    with_it, without = moved(fresh(), batch, changed(**changes)), moved(fresh(), batch, changed(**plain))
    assert float((with_it - without).abs().max()) > 1e-6


def test_scores_are_scaled_clipped_and_lowered_where_the_completion_was_cut(batch: ExperienceBatch) -> None:
    batch = replace(
        batch, rewards=torch.linspace(-8, 9, len(batch)), stopped=torch.arange(len(batch)) % 2 == 0
    )
    config = changed(reward_scale=0.5, reward_clip=3.0, missing_eos_penalty=1.5)
    scores, _ = final_scores(batch, config, RunningMoments())
    expected = (batch.rewards / 2).clamp(-3, 3) - 1.5 * ~batch.stopped
    torch.testing.assert_close(scores, expected)


def test_rewards_of_steps_are_earned_at_their_tokens_and_the_rest_at_the_end(
    fresh: Callable[[], ActorCritic], batch: ExperienceBatch
) -> None:
    config = changed(
        advantage_estimator="reinforce_plus_plus", whiten_advantages=False, kl_coef=0.0, reward_scale=0.5
    )
    steps = torch.zeros(batch.completion_mask.shape)
    steps[:, 0] = 3.0
    stepwise = replace(batch, step_rewards=steps)
    scores, moments = final_scores(stepwise, config, RunningMoments())
    earned = step_scores(stepwise, config, moments)
    evaluation = evaluate(fresh(), stepwise, config)
    to_go = make_targets(stepwise, evaluation, scores, config, 0.0, 0, earned).advantages
    expected = (scores[:, None] - torch.tensor([0.0] + [1.5] * (to_go.shape[1] - 1))) * batch.completion_mask
    torch.testing.assert_close(to_go, expected)
    assert float((moved(fresh(), stepwise, config) - moved(fresh(), batch, config)).abs().max()) > 1e-6
    alike = replace(stepwise, rewards=torch.ones(len(batch)))
    plain, scaling = config, config.model_copy(update={"score_normalization": "scale"})
    _, no_spread = final_scores(alike, scaling, RunningMoments())
    torch.testing.assert_close(step_scores(alike, scaling, no_spread), step_scores(alike, plain, no_spread))


def test_scores_are_normalised_by_all_scores_of_the_run_so_far(
    fresh: Callable[[], ActorCritic], batch: ExperienceBatch
) -> None:
    config = changed(score_normalization="normalize", reward_scale=2.0)
    first, second = batch, replace(batch, rewards=batch.rewards * 3 + 1)
    _, state = ppo.update(fresh(), first, config, AlgorithmState(config.kl_coef), 0, seed=0)
    scores, moments = final_scores(second, config, state.score_moments)
    everything = torch.cat([first.rewards, second.rewards]) * 2
    assert moments.count == len(everything)
    torch.testing.assert_close(scores, (second.rewards * 2 - everything.mean()) / everything.std())


def test_the_coefficient_adapts_from_update_to_update(
    fresh: Callable[[], ActorCritic], batch: ExperienceBatch
) -> None:
    config = changed(kl_coef=0.2, adaptive_kl={"target": 1000.0, "horizon": 100.0, "clip": 0.2})
    metrics, state = ppo.update(fresh(), batch, config, AlgorithmState(0.2), 0, seed=0)
    assert metrics["objective/kl_coef"] == 0.2
    assert state.kl_coef == pytest.approx(0.2 * (1 - 0.2 * len(batch) / 100))
    metrics, _ = ppo.update(fresh(), batch, config, state, 1, seed=0)
    assert metrics["objective/kl_coef"] == state.kl_coef
    _, unchanged = ppo.update(fresh(), batch, SETTINGS, AlgorithmState(0.2), 0, seed=0)
    assert unchanged.kl_coef == 0.2


def test_the_state_survives_its_way_through_a_checkpoint() -> None:
    state = AlgorithmState(0.3, RunningMoments(5, 1.5, 2.5))
    assert AlgorithmState.from_json(state.as_json()) == state


def test_a_resumed_run_takes_the_coefficient_of_its_configuration_unless_it_adapts() -> None:
    saved = AlgorithmState(0.3, RunningMoments(5, 1.5, 2.5))
    fixed = resumed_state(saved.as_json(), changed(kl_coef=0.1))
    assert fixed == replace(saved, kl_coef=0.1)
    assert resumed_state(saved.as_json(), changed(kl_coef=0.1, adaptive_kl={})) == saved


def test_a_penalty_in_the_loss_is_not_charged_in_the_rewards_too(
    fresh: Callable[[], ActorCritic], batch: ExperienceBatch
) -> None:
    models = fresh()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in own_reference(models).parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    in_loss, free = changed(kl_in="loss", kl_estimator="k3"), changed(kl_coef=0.0)
    torch.testing.assert_close(
        targets_of(models, batch, in_loss).returns, targets_of(models, batch, free).returns
    )
    metrics = run_update(models, batch, in_loss, 0, seed=0)
    assert metrics["objective/kl"] > 0 and metrics["objective/non_score_reward"] == 0


@pytest.mark.parametrize("flat", ["reference", "policy"])
def test_a_distance_far_below_zero_is_warned_of(
    fresh: Callable[[], ActorCritic], batch: ExperienceBatch, caplog: pytest.LogCaptureFixture, flat: str
) -> None:
    """Completions that the reference likes better than the policy does cannot be the policy's."""
    models = fresh()
    with torch.no_grad():
        for parameter in getattr(models, flat).parameters():
            parameter.mul_(0.1)
    distance = run_update(models, batch, SETTINGS, 0, seed=0)["objective/kl"]
    assert abs(distance) > 1
    assert ("top_k, top_p, min_p" in caplog.text) == (distance < 0) == (flat == "reference")


def test_a_penalty_in_the_loss_pulls_the_policy_back_to_the_reference(
    fresh: Callable[[], ActorCritic], batch: ExperienceBatch
) -> None:
    models = fresh()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in own_reference(models).parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    batch = replace(batch, rewards=torch.zeros(len(batch)))
    config = changed(kl_in="loss", kl_estimator="k2", kl_coef=5.0, whiten_advantages=False, epochs=8)

    def distance() -> float:
        evaluation = evaluate(models, batch, config)
        return float((evaluation.old_logprobs - evaluation.ref_logprobs).square().mean())

    before = distance()
    run_update(models, batch, config, 0, seed=0)
    assert distance() < 0.8 * before


@pytest.mark.parametrize(("option", "value"), [("ratio_threshold", 1.01), ("target_kl", 1e-9)])
def test_a_policy_that_has_gone_too_far_is_held_while_the_critic_learns_on(
    fresh: Callable[[], ActorCritic], batch: ExperienceBatch, option: str, value: float
) -> None:
    """A batch whose old policy is far off: the ratio is large from the first step."""
    models = fresh()
    policy, critic = full_state(models.policy), full_state(own_critic(models))
    config = changed(**{option: value}, correction={"proximal": "loglinear"}, epochs=3)
    far = replace(batch, rollout_logprobs=batch.rollout_logprobs - 3)
    metrics = run_update(models, far, config, 0, seed=0)
    assert metrics["steps/held"] == metrics["steps/optimizer"] == (1 if option == "target_kl" else 3)
    for name, tensor in full_state(models.policy).items():
        assert torch.equal(tensor, policy[name]), name
    assert any(not torch.equal(t, critic[name]) for name, t in full_state(own_critic(models)).items())


def test_during_critic_warm_up_only_the_critic_learns(
    fresh: Callable[[], ActorCritic], batch: ExperienceBatch
) -> None:
    models, config = fresh(), changed(critic_warmup_steps=2)
    critic = full_state(own_critic(models))
    assert not moved(models, batch, config, version=1).any()
    assert any(not torch.equal(t, critic[name]) for name, t in full_state(own_critic(models)).items())
    assert moved(models, batch, config, version=2).any()


def test_what_was_not_measured_is_not_logged(
    fresh: Callable[[], ActorCritic], batch: ExperienceBatch
) -> None:
    """No ratio of a policy that did not learn, no mismatch with logprobs that were not computed."""
    warming = run_update(fresh(), batch, changed(critic_warmup_steps=1), 0, seed=0)
    assert "loss/value_avg" in warming and "objective/kl" in warming
    assert not [name for name in warming if name.startswith(("val/ratio", "policy/", "loss/policy"))]
    approximate = run_update(fresh(), batch, changed(correction={"proximal": "loglinear"}), 0, seed=0)
    assert "staleness/tokens_0" in approximate
    assert not [name for name in approximate if name.startswith("correction/")]


@pytest.mark.parametrize(("update_steps", "expected"), [(None, 6), (4, 4), (8, 8)])
def test_the_number_of_optimizer_steps_can_be_set_apart_from_the_passes(
    fresh: Callable[[], ActorCritic], batch: ExperienceBatch, update_steps: int | None, expected: int
) -> None:
    config = changed(update_steps=update_steps, epochs=2, minibatches=3)
    metrics = run_update(fresh(), batch, config, 0, seed=0)
    assert metrics["steps/optimizer"] == expected
    assert metrics["tokens/trained"] == int(batch.lengths.sum()) * expected / 3


@pytest.mark.parametrize("estimator", CRITIC_FREE)
def test_without_a_critic_an_update_needs_none(
    fresh: Callable[[], ActorCritic], batch: ExperienceBatch, estimator: str
) -> None:
    models = replace(fresh(), critic=None, critic_optimizer=None)
    metrics = run_update(models, batch, changed(advantage_estimator=estimator), 0, seed=0)
    assert all(math.isfinite(value) for value in metrics.values())
    assert metrics["grad_norm/policy"] > 0 and metrics["advantages/std"] > 0
    of_critic = {"loss/value_avg", "val/clipfrac_avg", "val/explained_variance", "val/error", "values/mean"}
    assert not metrics.keys() & (of_critic | {"grad_norm/critic"})
    assert run_update(fresh(), batch, SETTINGS, 0, seed=0).keys() >= of_critic


def test_without_a_reference_there_is_no_distance_to_it(
    fresh: Callable[[], ActorCritic], batch: ExperienceBatch
) -> None:
    metrics = run_update(replace(fresh(), reference=None), batch, SETTINGS, 0, seed=0)
    assert metrics["objective/kl"] == 0


def test_only_a_cut_completion_is_bootstrapped_with_the_value_behind_its_last_token(
    fresh: Callable[[], ActorCritic], batch: ExperienceBatch
) -> None:
    models = fresh()
    assert models.critic is not None
    batch = replace(batch, stopped=torch.arange(len(batch)) % 2 == 0)
    final = evaluate(models, batch, changed(truncation="bootstrap")).final_values
    assert not final[batch.stopped].any() and final[~batch.stopped].all()
    with torch.no_grad():
        longer = replace(
            batch,
            input_ids=torch.nn.functional.pad(batch.input_ids, (0, 1)),
            completion_mask=torch.nn.functional.pad(batch.completion_mask, (1, 0), value=True),
        )
        values = completion_values(models.critic, longer, "float32")
        last = values[torch.arange(len(batch)), batch.completion_lengths]
    torch.testing.assert_close(final[~batch.stopped], last[~batch.stopped])
    assert not evaluate(models, batch, SETTINGS).final_values.any()


def test_the_value_behind_an_empty_completion_is_that_of_its_prompt(
    fresh: Callable[[], ActorCritic], batch: ExperienceBatch
) -> None:
    models = fresh()
    assert models.critic is not None
    with torch.no_grad():
        first = completion_values(models.critic, batch, "float32")[:, 0]
        empty = replace(batch, completion_mask=torch.zeros_like(batch.completion_mask))
        torch.testing.assert_close(final_values(models.critic, empty, "float32"), first)
