import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.learner.algorithm.correction import (
    Level,
    effective_sample_share,
    importance_weights,
    inside_band,
    loglinear_proximal,
)

LOG_RATIO = torch.tensor([[math.log(4), math.log(0.5), 7.0], [math.log(0.5), math.log(0.25), math.log(2)]])
MASK = torch.tensor([[True, True, False], [True, True, True]])


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("none", [[1, 1, 1], [1, 1, 1]]),
        ("token", [[3, 0.5, 1], [0.5, 0.25, 2]]),
        ("sequence", [[2, 2, 1], [0.25, 0.25, 0.25]]),
        ("geometric", [[math.sqrt(2)] * 2 + [1], [0.25 ** (1 / 3)] * 3]),
    ],
)
def test_weights_are_the_ratio_of_their_level_up_to_the_cap(
    level: Level, expected: list[list[float]]
) -> None:
    torch.testing.assert_close(importance_weights(LOG_RATIO, MASK, level, 3.0), torch.tensor(expected) * 1.0)


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("none", [[1, 1, 1], [1, 1, 1]]),
        ("token", [[0, 1, 1], [1, 0, 1]]),
        ("sequence", [[1, 1, 1], [0, 0, 0]]),
        ("geometric", [[1, 1, 1], [1, 1, 1]]),
    ],
)
def test_only_what_lies_inside_the_band_teaches(level: Level, expected: list[list[float]]) -> None:
    assert inside_band(LOG_RATIO, MASK, level, 0.45, 2.5).tolist() == expected


@given(low=st.floats(0.1, 0.9), high=st.floats(1.1, 5))
def test_equal_policies_have_weight_one_at_every_level(low: float, high: float) -> None:
    same = torch.zeros(2, 3)
    for level in ("none", "token", "sequence", "geometric"):
        assert importance_weights(same, MASK, level, high).eq(1).all()
        assert inside_band(same, MASK, level, low, high).eq(1).all()


def test_a_huge_ratio_is_capped_and_not_infinite() -> None:
    huge = torch.full((1, 3), 300.0)
    mask = torch.ones(1, 3, dtype=torch.bool)
    assert importance_weights(huge, mask, "sequence", 2.0) == pytest.approx(2.0)


def test_the_loglinear_approximation_lies_on_the_line_between_the_two_policies() -> None:
    rollout, now = torch.tensor([[-3.0, -3.0, -3.0]]), torch.tensor([[-1.0, -1.0, -1.0]])
    proximal = loglinear_proximal(now, rollout, torch.tensor([[0, 1, 3]]))
    torch.testing.assert_close(proximal, torch.tensor([[-3.0, -2.0, -1.5]]))


def test_the_effective_sample_share_tells_how_many_carry_the_weight() -> None:
    everything = torch.ones(1, 4, dtype=torch.bool)
    assert effective_sample_share(torch.full((1, 4), 0.3), everything) == pytest.approx(1)
    assert effective_sample_share(torch.tensor([[1.0, 0, 0, 0]]), everything) == pytest.approx(0.25)
    assert effective_sample_share(torch.zeros(1, 4), everything) == 0
    only = torch.tensor([[True, True, False, False]])
    assert effective_sample_share(torch.tensor([[1.0, 1.0, 50.0, 50.0]]), only) == pytest.approx(1)
