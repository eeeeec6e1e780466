"""How a run becomes seconds per iteration and seconds to an accuracy."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import ours
from benchmarks.peers.record import Accuracy, Iteration, Record
from benchmarks.peers.table import print_tables, transport_seconds


def record(*seconds: float, hidden: tuple[int, ...] = ()) -> Record:
    made = Record("ours-bf16", 0, {"precision": "bfloat16"})
    for index, value in enumerate(seconds):
        made.iterations.append(Iteration(value, {"evaluate": 0.1, "optimize": 0.5}, index in hidden))
    return made


def test_the_first_iteration_and_those_with_hidden_work_do_not_count() -> None:
    assert record(9.0, 2.0, 0.5, 3.0, 2.5, hidden=(2,)).seconds == 2.5


def test_hidden_work_is_charged_with_the_median_iteration() -> None:
    assert record(9.0, 2.0, 0.5, 2.0, hidden=(2,)).training_seconds == [9.0, 11.0, 13.0, 15.0]


def test_seconds_to_an_accuracy_are_those_of_the_iterations_before_its_evaluation() -> None:
    run = record(3.0, 2.0, 2.0, 2.0)
    run.accuracy = [Accuracy(0, 0.6, 0.4), Accuracy(2, 0.79, 0.5), Accuracy(4, 0.8, 0.5)]
    assert run.seconds_to(0.8) == 9.0
    assert run.seconds_to(0.5) == 0.0
    assert run.seconds_to(0.9) is None


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    run = record(3.0, 2.0, hidden=(1,))
    run.accuracy = [Accuracy(0, 0.6, 0.4)]
    run.write(tmp_path / "a" / "run.json")
    assert Record.read(tmp_path / "a" / "run.json") == run


def step(number: int, at: float) -> dict[str, Any]:
    phases = {"time/wait": 0.5, "time/evaluate": 0.2, "time/optimize": 1.0, "time/publish": 0.1}
    return {"step": number, "at": at, "eps": 1.0, "time/step": 1.8, **phases}


def evaluation(number: int, at: float) -> dict[str, Any]:
    accuracies = {"eval/heldout/greedy/accuracy": 0.6, "eval/heldout/sampled/accuracy": 0.5}
    return {"step": number, "at": at, **accuracies}


def test_evaluations_are_no_part_of_an_iteration_but_mark_the_next_one() -> None:
    rows = [evaluation(0, 10.0), step(1, 13.0), step(2, 15.0), evaluation(2, 25.0), step(3, 26.5)]
    run = Record("ours", 0, {})
    ours.read(rows, run)
    assert [iteration.seconds for iteration in run.iterations] == [3.0, 2.0, 1.5]
    assert [iteration.hidden_work for iteration in run.iterations] == [False, False, True]
    assert run.iterations[1].phases["other"] == pytest.approx(0.2)
    assert [accuracy.iteration for accuracy in run.accuracy] == [0, 2]


def test_transport_is_what_neither_the_learner_nor_bare_generation_takes() -> None:
    assert transport_seconds(record(9.0, 2.0), bare=1.3) == pytest.approx(0.1)


def test_the_tables_are_printed_from_records_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, seconds in (("ours-bf16", 2.0), ("trl-bf16", 4.0)):
        run = record(9.0, seconds)
        run.contender, run.accuracy = name, [Accuracy(0, 0.6, 0.4), Accuracy(2, 0.85, 0.5)]
        run.write(tmp_path / f"{name}-0.json")
    print_tables(tmp_path)
    printed = capsys.readouterr().out
    assert "ours-bf16 / trl-bf16: 0.50 (target 0.58)" in printed
    assert "| ours-bf16 | 11.0 | 11.0 | 0.850 | - | 0.500 |" in printed
    assert (tmp_path / "summary.json").exists()
