"""Every process of a run, with what it tells and holds."""

import time

import pytest

from services.console.workers import read_workers
from shared.reader import Reader
from shared.stream import Streams
from shared.workers import Heartbeat
from tests.console.hops import issue, take_prompt
from tests.console.looking import Look

FACTS = {
    "url": "http://here:1",
    "state": "serving",
    "version": 7,
    "digest": "abcdef123456",
    "groups_delivered": 5,
}


def test_a_live_worker_is_shown_with_its_weights_its_beat_and_what_it_holds(streams: Streams) -> None:
    for index in range(3):
        issue(streams, index)
    Reader(streams, "prompts", "rollout-a").read(2)
    heartbeat = Heartbeat(streams, "rollout", "rollout-a", lambda: FACTS)
    heartbeat.start()
    (worker,) = read_workers(streams)
    heartbeat.stop()
    assert worker.facts["version"] == 7 and worker.held == 2
    assert worker.facts["since"] == pytest.approx(time.time(), abs=30)
    assert worker.beat_seconds is not None and 0 <= worker.beat_seconds < 5


def test_one_that_died_is_shown_while_it_holds_something(streams: Streams) -> None:
    issue(streams)
    entry = take_prompt(streams, "rollout-gone")
    (worker,) = read_workers(streams)
    assert (worker.id, worker.held, worker.beat_seconds, worker.facts) == ("rollout-gone", 1, None, {})
    streams.forward(entry, "prompts", "rollouts", {"id": "id-0"}, b"")
    assert read_workers(streams) == []


@pytest.mark.usefixtures("run_folder")
def test_the_table_has_all_kinds_in_one_view(streams: Streams, shown: Look) -> None:
    issue(streams)
    take_prompt(streams, "rollout-gone")
    beats = [
        Heartbeat(streams, "rollout", "rollout-a", lambda: FACTS),
        Heartbeat(streams, "reward", "reward-b", lambda: {"groups_delivered": 3}),
        Heartbeat(streams, "learner", "learner", lambda: {"version": 7, "state": "training", "digest": None}),
    ]
    for beat in beats:
        beat.start()
    text = shown("workers")
    for beat in beats:
        beat.stop()
    rows = {line.split()[0]: line for line in text.splitlines() if line}
    assert rows["rollout-a"].split()[1:4] == ["serving", "7", "abcdef12"]
    assert "5 groups delivered" in rows["rollout-a"] and rows["rollout-a"].rstrip().endswith("http://here:1")
    assert "3 groups delivered" in rows["reward-b"] and rows["reward-b"].split()[1] == "alive"
    assert rows["learner"].split()[1:4] == ["training", "7", "-"]
    assert rows["rollout-gone"].split()[1] == "dead"
    assert "beat: age of its heartbeat" in text
