import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.learner.algorithm.rewards import RunningMoments, normalised, place_scores

MASK = torch.tensor([[True, True, True], [True, True, False], [True, False, False], [False, False, False]])
numbers = st.lists(st.floats(-100, 100), max_size=12)


def test_the_score_sits_on_exactly_one_token() -> None:
    placed = place_scores(torch.tensor([1.0, 2.0, 3.0, 4.0]), MASK, "last")
    assert placed.tolist() == [[0, 0, 1], [0, 2, 0], [3, 0, 0], [0, 0, 0]]


def test_a_score_on_every_token_is_the_whole_score_each_time() -> None:
    placed = place_scores(torch.tensor([1.0, 2.0, 3.0, 4.0]), MASK, "every")
    assert placed.tolist() == [[1, 1, 1], [2, 2, 0], [3, 0, 0], [0, 0, 0]]


@given(batches=st.lists(numbers, max_size=5))
def test_running_moments_are_those_of_all_numbers_together(batches: list[list[float]]) -> None:
    moments = RunningMoments()
    for batch in batches:
        moments = moments.including(torch.tensor(batch, dtype=torch.float64))
    together = [number for batch in batches for number in batch]
    assert moments.count == len(together)
    if together:
        assert moments.mean == pytest.approx(statistics.fmean(together), abs=1e-9)
    expected = statistics.stdev(together) if len(together) > 1 else 0.0
    assert moments.std == pytest.approx(expected, abs=1e-6)


def test_normalised_scores_have_the_running_spread_and_mean() -> None:
    scores = torch.tensor([1.0, 2.0, 3.0, 6.0])
    moments = RunningMoments().including(scores)
    both = normalised(scores, moments, shift_mean=True)
    assert float(both.mean()) == pytest.approx(0, abs=1e-6)
    assert float(both.std()) == pytest.approx(1, abs=1e-6)
    torch.testing.assert_close(normalised(scores, moments, shift_mean=False), scores / scores.std())


@pytest.mark.parametrize(("shift_mean", "expected"), [(True, 0.0), (False, 5.0)])
@pytest.mark.parametrize("count", [1, 3])
def test_equal_scores_are_not_divided_by_the_spread_that_they_lack(
    count: int, shift_mean: bool, expected: float
) -> None:
    scores = torch.full((count,), 5.0)
    given = normalised(scores, RunningMoments().including(scores), shift_mean)
    assert given.tolist() == [expected] * count
