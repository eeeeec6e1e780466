import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.learner.algorithm.kl import KLEstimator, adapted_kl_coef, kl_estimate, kl_penalty
from services.learner.algorithm.rewards import place_scores
from tests import oracles
from tests.learner.samples import padded, rows_of, unpadded

OLD = torch.tensor([[-1.0, -0.5, -2.0, -1.5], [-0.7, -1.2, 0.0, 0.0]])
REF = torch.tensor([[-1.1, -0.4, -1.5, -1.5], [-0.9, -1.0, 0.0, 0.0]])
MASK = torch.tensor([[True, True, True, True], [True, True, False, False]])
MASK_WITH_NEXT_STATE = torch.tensor([[True, True, True, True], [True, True, True, False]])
"""TRL scores the position after the last token where there is one."""


def test_k3_matches_trl() -> None:
    expected = torch.tensor([[0.004837, 0.005171, 0.148721, 0.0], [0.018731, 0.021403, 0.0, 0.0]])
    torch.testing.assert_close(kl_estimate(OLD, REF, "k3") * MASK, expected, atol=1e-6, rtol=0)


def test_k1_rewards_with_the_score_placed_as_trl_does() -> None:
    rewards = kl_penalty(kl_estimate(OLD, REF, "k1"), MASK, 0.05)
    rewards += place_scores(torch.tensor([1.0, -0.5]), MASK_WITH_NEXT_STATE, "last")
    expected = torch.tensor([[-0.005, 0.005, 0.025, 1.0], [-0.01, 0.01, -0.5, 0.0]])
    torch.testing.assert_close(rewards, expected, atol=1e-6, rtol=0)


def test_k1_rewards_with_the_clamped_score_on_every_token_as_coati_does() -> None:
    scores = torch.tensor([10.0, -0.5]).clamp(-5, 5)
    rewards = kl_penalty(kl_estimate(OLD, REF, "k1"), MASK, 0.1)
    rewards += place_scores(scores, MASK, "every")
    expected = torch.tensor([[4.99, 5.01, 5.05, 5.0], [-0.52, -0.48, 0.0, 0.0]])
    torch.testing.assert_close(rewards, expected, atol=1e-6, rtol=0)


@given(data=st.data(), estimator=st.sampled_from(["k1", "k2", "k3"]))
def test_shaped_rewards_match_the_oracle_whatever_the_lengths(
    data: st.DataObject, estimator: KLEstimator
) -> None:
    lengths = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=5))
    logprobs, ref = (data.draw(rows_of(lengths, -5, 0)) for _ in range(2))
    scores = data.draw(st.lists(st.floats(-10, 10), min_size=len(lengths), max_size=len(lengths)))

    expected = oracles.shaped_rewards(scores, oracles.kl(logprobs, ref, estimator), 0.1)

    (p, mask), (q, _) = padded(logprobs), padded(ref)
    rewards = kl_penalty(kl_estimate(p, q, estimator), mask, 0.1)
    rewards += place_scores(torch.tensor(scores, dtype=torch.float64), mask, "last")
    assert torch.equal(rewards[~mask], torch.zeros_like(rewards[~mask]))
    for got, want in zip(unpadded(rewards, mask), expected, strict=True):
        assert got == pytest.approx(want, abs=1e-12)


def test_padding_never_reaches_the_penalty() -> None:
    kl = torch.tensor([[1.0, float("nan")]])
    assert kl_penalty(kl, torch.tensor([[True, False]]), 0.5).tolist() == [[-0.5, 0.0]]


def test_an_unknown_estimator_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'k4': use k1, k2 or k3"):
        kl_estimate(OLD, REF, "k4")  # type: ignore[arg-type]


def test_the_adaptive_coefficient_matches_trl() -> None:
    coefficients, coefficient = [], 0.2
    for kl in (12, 12, 6, 3, 6.6):
        coefficient = adapted_kl_coef(coefficient, kl, completions=256, target=6, horizon=10_000)
        coefficients.append(coefficient)
    assert coefficients == pytest.approx([0.201024, 0.20205324, 0.20205324, 0.20101873, 0.20153334], rel=1e-7)


@pytest.mark.parametrize(("kl", "factor"), [(100.0, 1.02), (0.0, 0.98), (6.0, 1.0), (-5.0, 0.98)])
def test_the_adaptive_coefficient_moves_by_a_clipped_share_of_the_horizon(kl: float, factor: float) -> None:
    assert adapted_kl_coef(0.1, kl, completions=1000, target=6, horizon=10_000) == pytest.approx(0.1 * factor)
    wider = adapted_kl_coef(0.1, 60, completions=1000, target=6, horizon=10_000, clip=0.5)
    assert wider == pytest.approx(0.105)
