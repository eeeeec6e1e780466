import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.learner.algorithm.advantages import CRITIC_FREE, generalized_advantages, returns_to_go, whiten
from tests import oracles
from tests.learner.samples import padded, rows_of, unpadded

MASK = torch.tensor([[True, True, True, True], [True, True, False, False]])
MASK_WITH_NEXT_STATE = torch.tensor([[True, True, True, True], [True, True, True, False]])


def test_advantages_and_whitening_match_trl() -> None:
    rewards = torch.tensor([[-0.005, 0.005, 0.025, 1.0], [-0.01, 0.01, -0.5, 0.0]])
    values = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.5, -0.1, 0.25, 9.0]])
    advantages = generalized_advantages(rewards, values, MASK_WITH_NEXT_STATE, 1.0, 0.95)
    expected = torch.tensor([[0.821988, 0.76525, 0.695, 0.6], [-0.944875, -0.3525, -0.75, 0.0]])
    torch.testing.assert_close(advantages, expected, atol=1e-6, rtol=0)

    expected = torch.tensor([[0.758749, 0.681577, 0.586027, 0.456813], [-1.644441, -0.838725, 0.0, 0.0]])
    torch.testing.assert_close(whiten(advantages, MASK), expected, atol=1e-6, rtol=0)


def test_whitened_rewards_keep_their_mean_as_in_trl() -> None:
    rewards = torch.tensor([[-0.005, 0.005, 0.025, 1.0], [-0.01, 0.01, -0.5, 0.0]])
    expected = torch.tensor(
        [[-0.103034, -0.080780, -0.036271, 2.133523], [-0.114162, -0.069653, -1.204622, 0]]
    )
    torch.testing.assert_close(
        whiten(rewards, MASK_WITH_NEXT_STATE, shift_mean=False), expected, atol=1e-6, rtol=0
    )


def test_advantages_match_coati() -> None:
    rewards = torch.tensor([[4.99, 5.01, 5.05, 5.0], [-0.52, -0.48, 0.0, 0.0]])
    values = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.5, -0.1, 0.0, 0.0]])
    expected = torch.tensor([[18.5363, 14.1540, 9.52, 4.60], [-1.481, -0.38, 0.0, 0.0]])
    torch.testing.assert_close(
        generalized_advantages(rewards, values, MASK, 1.0, 0.95), expected, atol=1e-4, rtol=0
    )


@given(data=st.data(), gamma=st.floats(0, 1), gae_lambda=st.floats(0, 1), padding=st.integers(0, 3))
def test_advantages_match_the_oracle_whatever_the_padding_holds(
    data: st.DataObject, gamma: float, gae_lambda: float, padding: int
) -> None:
    lengths = data.draw(st.lists(st.integers(0, 7), min_size=1, max_size=5))
    rewards, values = (data.draw(rows_of(lengths, -10, 10)) for _ in range(2))
    expected = oracles.advantages(rewards, values, gamma, gae_lambda)

    (r, mask), (v, _) = padded(rewards, padding), padded(values, padding)
    junk = torch.full_like(v, 1e3)
    advantages = generalized_advantages(
        torch.where(mask, r, junk), torch.where(mask, v, junk), mask, gamma, gae_lambda
    )
    assert torch.equal(advantages[~mask], torch.zeros_like(advantages[~mask]))
    for got, want in zip(unpadded(advantages, mask), expected, strict=True):
        assert got == pytest.approx(want, abs=1e-9)


def test_with_gamma_and_lambda_one_the_advantage_is_the_return_minus_the_value() -> None:
    rewards, values = torch.rand(3, 5), torch.rand(3, 5)
    mask = torch.arange(5) < torch.tensor([5, 3, 1])[:, None]
    advantages = generalized_advantages(rewards, values, mask, 1.0, 1.0)
    to_go = (rewards * mask).flip(1).cumsum(1).flip(1)
    torch.testing.assert_close(advantages, (to_go - values) * mask)


@given(data=st.data(), shift_mean=st.booleans())
def test_whitening_matches_the_oracle(data: st.DataObject, shift_mean: bool) -> None:
    lengths = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=5))
    rows = data.draw(rows_of(lengths, -10, 10))
    values, mask = padded(rows)
    result = whiten(torch.where(mask, values, 1e6), mask, shift_mean)
    assert torch.equal(result[~mask], torch.zeros_like(result[~mask]))
    for got, want in zip(unpadded(result, mask), oracles.whitened(rows, shift_mean), strict=True):
        assert got == pytest.approx(want, rel=1e-6, abs=1e-6)


def test_equal_values_whiten_to_zero_and_not_to_infinity() -> None:
    mask = torch.ones(2, 3, dtype=torch.bool)
    assert torch.equal(whiten(torch.full((2, 3), 7.0), mask), torch.zeros(2, 3))


def test_a_large_mean_does_not_drown_the_variance() -> None:
    values = torch.tensor([[1e4 + 1, 1e4 - 1, 1e4 + 1, 1e4 - 1]])
    whitened = whiten(values, torch.ones(1, 4, dtype=torch.bool))
    torch.testing.assert_close(whitened.abs(), torch.full((1, 4), 0.8660254), atol=1e-5, rtol=0)


def test_a_cut_completion_goes_on_with_what_the_critic_expects() -> None:
    rewards, values = torch.tensor([[1.0, 2.0, 9.0], [1.0, 2.0, 9.0]]), torch.tensor([[0.5, 0.5, 7.0]] * 2)
    mask = torch.tensor([[True, True, False]] * 2)
    ended, cut = generalized_advantages(rewards, values, mask, 0.9, 1.0, torch.tensor([0.0, 10.0]))
    torch.testing.assert_close(ended, torch.tensor([1 + 0.9 * 2 - 0.5, 2 - 0.5, 0.0]))
    torch.testing.assert_close(cut, torch.tensor([1 + 0.9 * 2 + 0.81 * 10 - 0.5, 2 + 0.9 * 10 - 0.5, 0.0]))


def test_bootstrapping_equals_one_more_token_whose_value_was_foreseen() -> None:
    """Half a trajectory with the critic's value behind it is worth the same, when that value is right."""
    rewards, values = torch.rand(1, 6), torch.rand(1, 6)
    whole = generalized_advantages(rewards, values, torch.ones(1, 6, dtype=torch.bool), 0.9, 0.0)
    cut = generalized_advantages(
        rewards[:, :3], values[:, :3], torch.ones(1, 3, dtype=torch.bool), 0.9, 0.0, values[:, 3]
    )
    torch.testing.assert_close(cut, whole[:, :3])


def test_returns_to_go_are_discounted_sums() -> None:
    rewards = torch.tensor([[1.0, 2.0, 4.0], [1.0, 2.0, 99.0]])
    mask = torch.tensor([[True, True, True], [True, True, False]])
    assert returns_to_go(rewards, mask, 0.5).tolist() == [[3.0, 4.0, 4.0], [2.0, 2.0, 0.0]]


REWARDS = torch.tensor([[0.0, 1.0], [0.5, 2.5], [3.0, 99.0], [-1.0, 0.0], [0.0, 1.0]])
PAIR_MASK = torch.tensor([[True, True], [True, True], [True, False], [True, True], [True, True]])
GROUPS = torch.tensor([4, 4, 4, 9, 9])
"""Sums of 1, 3 and 3 in the first group, -1 and 1 in the second."""


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        ("grpo_without_std", [-4 / 3, 2 / 3, 2 / 3, -1, 1]),
        ("grpo", [-1.154601, 0.5773, 0.5773, -0.707057, 0.707057]),
        ("rloo", [1 - 3, 3 - 2, 3 - 2, -2, 2]),
        ("reinforce_plus_plus_baseline", [-4 / 3, 2 / 3, 2 / 3, -1, 1]),
    ],
)
def test_group_estimators_compare_the_completions_of_a_prompt(estimator: str, expected: list[float]) -> None:
    advantages = CRITIC_FREE[estimator](REWARDS, PAIR_MASK, GROUPS, 1.0)
    want = torch.tensor(expected, dtype=torch.float32)[:, None] * PAIR_MASK
    torch.testing.assert_close(advantages, want, atol=1e-5, rtol=0)


def test_reinforce_plus_plus_is_the_return_to_go() -> None:
    advantages = CRITIC_FREE["reinforce_plus_plus"](REWARDS, PAIR_MASK, GROUPS, 1.0)
    assert advantages.tolist() == [[1, 1], [3, 2.5], [3, 0], [-1, 0], [1, 1]]


@pytest.mark.parametrize("estimator", ["grpo", "grpo_without_std", "rloo", "reinforce_plus_plus_baseline"])
@given(seed=st.integers(0, 1000))
def test_a_group_of_equal_rewards_or_of_one_teaches_nothing(estimator: str, seed: int) -> None:
    torch.manual_seed(seed)
    rewards = torch.randn(1, 4).expand(3, 4)
    mask = torch.ones(3, 4, dtype=torch.bool)
    for groups in (torch.zeros(3, dtype=torch.long), torch.arange(3)):
        advantages = CRITIC_FREE[estimator](rewards, mask, groups, 1.0)
        torch.testing.assert_close(advantages, torch.zeros(3, 4), atol=1e-4, rtol=0)


@pytest.mark.parametrize("estimator", sorted(CRITIC_FREE))
@given(seed=st.integers(0, 1000), padding=st.integers(0, 3))
def test_neither_order_nor_padding_changes_an_estimate(estimator: str, seed: int, padding: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    mask = torch.arange(4) < torch.randint(0, 5, (6,), generator=generator)[:, None]
    groups = torch.randint(0, 3, (6,), generator=generator)
    order = torch.randperm(6, generator=generator)
    plain = CRITIC_FREE[estimator](rewards, mask, groups, 0.9)
    wide = torch.nn.functional.pad(rewards[order], (0, padding), value=5.0)
    wide_mask = torch.nn.functional.pad(mask[order], (0, padding))
    other = CRITIC_FREE[estimator](wide, wide_mask, groups[order], 0.9)
    torch.testing.assert_close(other[:, :4], plain[order])
    assert not other[:, 4:].any()
