"""What the live view knows of a run, from real events and heartbeats."""

import json

from rich.console import Console

from services.console.progress import Progress
from services.console.view import run_panel, sparkline, status_views
from shared.stream import Streams
from shared.workers import Heartbeat

STEP = {
    "reward/mean": 5.5,
    "objective/kl": 0.25,
    "staleness/mean": 0.5,
    "staleness/max": 1.0,
    "time/step": 2.0,
    "time/optimize": 1.5,
    "tokens/trained": 3000.0,
    "tokens/generated_per_second": 700.0,
    "tokens/trained_per_second": 1500.0,
}
EVALUATION = {"eval/heldout/greedy/accuracy": 0.75, "eval/heldout/sampled/accuracy": 0.5}


def post(streams: Streams, kind: str, metrics: dict[str, float], step: int) -> None:
    streams.event(kind, "learner", json.dumps({"step": step, **metrics}))


def test_steps_and_evaluations_are_followed(streams: Streams) -> None:
    post(streams, "step", STEP | {"reward/mean": -1.0}, 1)
    progress = Progress(streams, with_past=False)
    progress.refresh()
    assert progress.newest_step == {}
    post(streams, "step", STEP, 2)
    post(streams, "eval", EVALUATION, 2)
    progress.refresh()
    assert list(progress.steps) == list(progress.evaluations) == [2]
    assert progress.newest_step["reward/mean"] == 5.5
    assert progress.newest_evaluation["eval/heldout/greedy/accuracy"] == 0.75


def test_the_past_is_known_but_not_what_a_restart_undid(streams: Streams) -> None:
    for step in (1, 2, 3):
        post(streams, "step", STEP, step)
    post(streams, "step", STEP | {"reward/mean": 9.0}, 2)
    progress = Progress(streams, with_past=True)
    progress.refresh()
    assert list(progress.steps) == [1, 2]
    assert progress.newest_step["reward/mean"] == 9.0


def test_a_look_at_a_long_run_shows_its_newest_step_and_rates(streams: Streams) -> None:
    for step in range(1, 1302):
        post(streams, "step", STEP | {"tokens/generated_per_second": 10.0 * step}, step)
    progress = Progress(streams, with_past=True)
    progress.refresh()
    assert len(progress.steps) == 1301
    assert progress.newest_step["step"] == 1301
    console = Console(width=120)
    with console.capture() as captured:
        console.print(*status_views(progress))
    (row,) = [line for line in captured.get().splitlines() if "tokens/s" in line]
    assert row.split() == ["tokens/s", "13,010", "generated,", "1,500", "trained"]


def test_the_panel_shows_training_workers_and_queues(streams: Streams) -> None:
    progress = Progress(streams, with_past=False)
    for step in (1, 2):
        post(streams, "step", STEP, step)
    post(streams, "eval", EVALUATION, 2)
    facts = {"version": 2, "state": "serving", "tokens_generated": 5}
    Heartbeat(streams, "rollout", "rollout-a", lambda: facts).beat()
    progress.refresh()
    console = Console(width=120)
    with console.capture() as captured:
        console.print(run_panel(progress, "demo", total_steps=9, seconds=75))
    text = captured.get()
    for part in (
        "demo   step 2/9   1:15",
        "reward",
        "5.500",
        "greedy accuracy",
        "0.750",
        "0.250",
        "experiences",
    ):
        assert part in text
    (row,) = [line for line in text.splitlines() if "rollout-a" in line]
    assert row.split()[1:4] == ["rollout-a", "2", "serving"]


def test_a_look_says_how_many_steps_of_how_many_are_done(streams: Streams) -> None:
    Heartbeat(streams, "rollout", "rollout-a", dict).beat()
    progress = Progress(streams, with_past=True)
    progress.refresh()
    assert status_views(progress)[0] == f"{streams.run}: no learner is alive"
    Heartbeat(streams, "learner", "learner", lambda: {"version": 12, "steps": 65}).beat()
    progress.refresh()
    assert status_views(progress)[0] == f"{streams.run}: step 12 of 65"


def test_the_panel_can_be_drawn_before_anything_happened(streams: Streams) -> None:
    progress = Progress(streams, with_past=False)
    progress.refresh()
    console = Console(width=120)
    with console.capture() as captured:
        console.print(run_panel(progress, "demo", total_steps=9, seconds=0))
    assert "step 0/9" in captured.get()
    assert status_views(progress)[0] == f"no service of run {streams.run} is alive"


def test_further_datasets_and_several_samples_are_shown_by_name(streams: Streams) -> None:
    more = {"eval/gsm8k/greedy/accuracy": 0.125, "eval/heldout/sampled/pass@4": 0.875}
    post(streams, "eval", EVALUATION | more, 3)
    progress = Progress(streams, with_past=True)
    progress.refresh()
    console = Console(width=120)
    with console.capture() as captured:
        console.print(*status_views(progress))
    rows = {tuple(row.split()[:-1]) for row in captured.get().splitlines()}
    assert {("gsm8k", "greedy", "accuracy", "0.125"), ("sampled", "pass@4", "0.875")} <= rows


def test_a_sparkline_spans_its_values() -> None:
    assert sparkline([0, 7, 3.5]) == "▁█▅"
    assert sparkline([2, 2]) == "▁▁"
    assert sparkline([]) == ""
    assert len(sparkline(range(100))) == 40
