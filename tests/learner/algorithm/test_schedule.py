"""Learning rates over a run."""

import pytest

from services.learner.algorithm.schedule import Schedule, learning_rate_factor


def test_a_constant_rate_without_warm_up_is_constant() -> None:
    assert {learning_rate_factor(step, 10, 0, "constant", 0.1) for step in range(10)} == {1.0}


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_the_rate_rises_over_the_warm_up(schedule: Schedule) -> None:
    factors = [learning_rate_factor(step, 10_000, 4, schedule, 0.1) for step in range(6)]
    assert factors == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 1.0], abs=1e-3)


def test_a_linear_rate_falls_to_its_final_share_at_the_last_step() -> None:
    factors = [learning_rate_factor(step, 11, 0, "linear", 0.1) for step in range(11)]
    assert factors == pytest.approx([1 - 0.09 * step for step in range(11)])


def test_a_cosine_rate_falls_to_its_floor_and_never_climbs_again() -> None:
    """ColossalChat's climbs: it counts episodes and steps once for each optimizer step."""
    factors = [learning_rate_factor(step, 21, 0, "cosine", 0.1) for step in range(21)]
    assert factors == sorted(factors, reverse=True)
    assert (factors[0], factors[10], factors[20]) == pytest.approx((1.0, 0.55, 0.1))


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_a_run_of_one_step_has_the_full_rate(schedule: Schedule) -> None:
    assert learning_rate_factor(0, 1, 0, schedule, 0.1) == 1.0
