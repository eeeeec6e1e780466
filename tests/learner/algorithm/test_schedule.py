"""Learning rates over a run."""

import pytest
import torch

from services.learner.algorithm.schedule import learning_rate_factor, set_learning_rate


def test_without_warm_up_and_descent_the_rate_is_constant() -> None:
    assert {learning_rate_factor(step, 10, 0, 1.0) for step in range(10)} == {1.0}


def test_the_rate_rises_over_the_warm_up_and_then_stays() -> None:
    factors = [learning_rate_factor(step, 100, 4, 1.0) for step in range(6)]
    assert factors == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_the_rate_falls_to_its_final_share_at_the_last_step() -> None:
    factors = [learning_rate_factor(step, 11, 0, 0.1) for step in range(11)]
    assert factors == pytest.approx([1 - 0.09 * step for step in range(11)])


def test_a_run_of_one_step_has_the_full_rate() -> None:
    assert learning_rate_factor(0, 1, 0, 0.1) == 1.0


def test_the_rate_is_set_on_every_parameter_group() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimizer = torch.optim.AdamW([{"params": [p], "lr": 1.0} for p in parameters])
    set_learning_rate(optimizer, 0.5)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.5]
