"""What becomes of completions that an older policy sampled, or an engine that computes otherwise."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from services.learner.data.batch import ExperienceBatch, collate
from services.learner.models.actor_critic import ActorCritic
from services.learner.models.scores import score_completions
from services.learner.targets import evaluate, make_targets
from tests.learner.samples import SETTINGS, changed, make_groups, moved, run_update


def test_fresh_completions_have_weight_one_and_stale_ones_their_capped_importance(
    fresh: Callable[[], ActorCritic],
) -> None:
    batch = collate(make_groups(2, 1, version=4) + make_groups(2, 1, seed=9, version=5))
    evaluation = evaluate(fresh(), batch, SETTINGS)
    config = changed(correction={"weight_cap": 1.5})
    weights = make_targets(batch, evaluation, batch.rewards, config, 0.05, policy_version=5).weights
    expected = (evaluation.old_logprobs - batch.rollout_logprobs).exp().clamp(max=1.5)
    stale = batch.completion_mask[:2]
    torch.testing.assert_close(weights[:2][stale], expected[:2][stale])
    assert torch.equal(weights[2:], torch.ones_like(weights[2:]))
    assert float(weights.max()) == 1.5 and float(weights.min()) < 1


def test_the_importance_of_stale_completions_weighs_their_policy_loss(
    fresh: Callable[[], ActorCritic],
) -> None:
    actor_critic, batch = fresh(), collate(make_groups(3, 2))
    evaluation = evaluate(actor_critic, batch, SETTINGS)
    targets = make_targets(batch, evaluation, batch.rewards, SETTINGS, SETTINGS.kl_coef, policy_version=1)
    metrics = run_update(actor_critic, batch, SETTINGS, policy_version=1, seed=0)
    weighted = (-targets.advantages * targets.weights)[batch.completion_mask].mean()
    assert metrics["loss/policy_avg"] == pytest.approx(float(weighted), abs=1e-5)
    assert metrics["staleness/max"] == 1
    assert abs(float(weighted) + float(targets.advantages[batch.completion_mask].mean())) > 1e-2


def test_masked_completions_give_no_policy_gradient(
    fresh: Callable[[], ActorCritic], batch: ExperienceBatch
) -> None:
    """All logprobs of the engine off by more than the band allows: nothing is left to learn from."""
    far = replace(batch, rollout_logprobs=batch.rollout_logprobs - 20)
    for level in ("token", "sequence", "geometric"):
        config = changed(correction={"weight": "none", "mask": level, "mask_high": 1.5})
        metrics = run_update(fresh(), far, config, 1, seed=0)
        assert metrics["correction/masked_fraction"] == 1
        assert metrics["grad_norm/policy"] == 0 < metrics["grad_norm/critic"]


def test_the_band_has_the_bounds_that_are_configured(
    fresh: Callable[[], ActorCritic], batch: ExperienceBatch
) -> None:
    """Every token's ratio is a half, and then two."""
    old = evaluate(fresh(), batch, SETTINGS).old_logprobs
    for shift, bounds, masked in (
        (math.log(2), {"mask_low": 0.4}, 0),
        (math.log(2), {"mask_low": 0.6}, 1),
        (-math.log(2), {"mask_high": 2.2}, 0),
        (-math.log(2), {"mask_high": 1.8}, 1),
    ):
        half = replace(batch, rollout_logprobs=torch.where(batch.completion_mask, old + shift, 0.0))
        config = changed(correction={"mask": "token", "fresh": True, **bounds})
        metrics = run_update(fresh(), half, config, 0, seed=0)
        assert metrics["correction/masked_fraction"] == masked


def test_fresh_completions_are_corrected_only_when_asked(
    fresh: Callable[[], ActorCritic], batch: ExperienceBatch
) -> None:
    off = replace(batch, rollout_logprobs=batch.rollout_logprobs - 20)
    plain = run_update(fresh(), off, SETTINGS, 0, seed=0)
    asked = run_update(fresh(), off, changed(correction={"fresh": True, "mask": "token"}), 0, seed=0)
    assert plain["correction/masked_fraction"] == 0 and asked["correction/masked_fraction"] == 1
    assert plain["correction/mismatch_kl"] > 1


def test_at_staleness_zero_correction_changes_nothing(
    fresh: Callable[[], ActorCritic], batch: ExperienceBatch
) -> None:
    plain = moved(fresh(), batch, changed(correction={"weight": "none"}))
    for level in ("token", "sequence", "geometric"):
        config = changed(correction={"weight": level, "mask": level})
        assert torch.equal(moved(fresh(), batch, config), plain)


def test_the_loglinear_approximation_saves_the_pass_and_starts_at_ratio_one_when_exact(
    fresh: Callable[[], ActorCritic], batch: ExperienceBatch
) -> None:
    models = fresh()
    with torch.no_grad():
        exact = score_completions(models.policy, batch, 1.0, "float32").logprobs
    batch = replace(batch, rollout_logprobs=exact)
    config = changed(correction={"proximal": "loglinear"}, kl_coef=0.0)
    assert torch.equal(evaluate(models, batch, config).old_logprobs, exact)
    metrics = run_update(models, batch, config, 3, seed=0)
    assert metrics["val/ratio_first"] == pytest.approx(1, abs=1e-5)
    recomputed = run_update(fresh(), batch, changed(kl_coef=0.0), 3, seed=0)
    assert metrics["loss/policy_avg"] == pytest.approx(recomputed["loss/policy_avg"], abs=1e-5)


def test_the_loglinear_approximation_shares_the_way_by_staleness(
    fresh: Callable[[], ActorCritic], batch: ExperienceBatch
) -> None:
    """With every token one version old the ratio is the root of that to the engine."""
    models = fresh()
    with torch.no_grad():
        exact = score_completions(models.policy, batch, 1.0, "float32").logprobs
    shifted = replace(batch, rollout_logprobs=(exact - 0.2) * batch.completion_mask)
    metrics = run_update(models, shifted, changed(correction={"proximal": "loglinear"}), 1, seed=0)
    assert metrics["val/ratio_first"] == pytest.approx(math.exp(0.1), abs=1e-4)


def test_how_old_tokens_were_is_reported_by_age(
    fresh: Callable[[], ActorCritic], batch: ExperienceBatch
) -> None:
    old = collate(make_groups(2, 2, version=4) + make_groups(1, 2, seed=3, version=6))
    metrics = run_update(fresh(), old, SETTINGS, 6, seed=0)
    tokens = old.completion_mask.sum(dim=1)
    assert metrics["staleness/tokens_2"] == pytest.approx(float(tokens[:4].sum() / tokens.sum()))
    assert metrics["staleness/tokens_2"] + metrics["staleness/tokens_0"] == pytest.approx(1)
    assert metrics["correction/ratio_2"] != metrics["correction/ratio_0"]
    assert 0 < metrics["correction/effective_sample_share"] <= 1
