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


@pytest.mark.usefixtures("run_folder")
def test_status_and_workers_tell_the_same_work_and_how_many_credits_it_takes(
    streams: Streams, shown: Look
) -> None:
    holding = {"state": "training", "version": 1, "steps": 9, "groups_in_flight": 250, "credits": 256}
    beats = [
        Heartbeat(streams, "learner", "learner", lambda: holding),
        Heartbeat(streams, "rollout", "rollout-a", lambda: FACTS | {"groups_in_flight": 8, "groups_dead": 2}),
    ]
    for beat in beats:
        beat.start()
    texts = [shown(look) for look in ("status", "workers")]
    for beat in beats:
        beat.stop()
    for text in texts:
        assert "250 of 256 credits in use" in text and "250 groups" not in text
        assert "8 groups in flight, 5 groups delivered, 2 groups dead" in text


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
    states, work, legend = text.split("\n\n")
    rows = {line.split()[0]: line.split()[1:] for line in states.splitlines()}
    assert rows["rollout-a"][:3] == ["serving", "7", "abcdef12"]
    assert rows["learner"][:3] == ["training", "7", "-"]
    assert rows["reward-b"][0] == "alive" and rows["rollout-gone"][0] == "dead"
    done = {line.split()[0]: line.rstrip() for line in work.splitlines()}
    assert done["rollout-a"].endswith("  5 groups delivered, http://here:1")
    assert done["reward-b"].endswith("  3 groups delivered") and "rollout-gone" not in done
    assert "beat: age of its heartbeat" in legend


@pytest.mark.usefixtures("run_folder")
def test_everything_fits_into_80_columns_with_its_numbers_whole(
    streams: Streams, shown: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    id, url = "rollout-0123456789ab-22329-abc123", "http://127.0.0.1:8000"
    work = {"groups_in_flight": 128, "groups_delivered": 16640, "tokens_generated": 750756}
    heartbeat = Heartbeat(streams, "rollout", id, lambda: FACTS | {"url": url, "version": 16640} | work)
    heartbeat.start()
    issue(streams)
    take_prompt(streams, id)
    text = shown("workers")
    heartbeat.stop()
    assert all(len(line) <= 80 for line in text.splitlines())
    words = text.split()
    for whole in ("serving", "16640", "abcdef12", "128", "750756", url):
        assert whole in words or f"{whole}," in words
    (row,) = [line for line in text.splitlines() if " serving " in line]
    assert row.split()[1:4] == ["serving", "16640", "abcdef12"] and row.split()[-2:] == ["s", "1"]
