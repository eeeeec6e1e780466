"""The stream door when its worker stops, or Redis does."""

import threading
from pathlib import Path

import pytest

from services.reward.rules.config import RuleConfig
from services.reward.rules.table import RULES, Row
from services.reward.worker import Worker
from shared.reader import Reader
from shared.scoring import ScoreItem
from shared.stream import Streams, connect
from shared.workers import Heartbeat, list_workers
from tests.conftest import RedisServer
from tests.reward.conftest import Start, wait_for
from tests.reward.groups import RIGHT, WRONG, deliver, make_group
from tests.reward.test_kept import keys
from tests.reward.test_worker import experiences, length


def outcomes(worker: Worker) -> dict[str, int]:
    names = ("delivered", "dropped", "dead", "handed_back")
    return {name: int(worker._metrics.groups.labels(name)._value.get()) for name in names}


def test_a_worker_that_stops_signs_off(streams: Streams, start: Start) -> None:
    worker = start(streams)
    wait_for(lambda: list_workers(streams, "reward"), "the heartbeat")
    worker.stop()

    def kinds() -> list[str]:
        return [event.fields["kind"] for event in streams.tail("events", 10)]

    wait_for(lambda: kinds() == ["join", "leave"], "the worker's leave", seconds=5)
    assert not list_workers(streams, "reward")
    wait_for(lambda: worker.outage == "stopped", "the worker's end", seconds=5)


def test_an_outage_of_redis_is_waited_out_and_told_once(
    tmp_path: Path, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    server = RedisServer(tmp_path)
    try:
        with connect(server.url) as client:
            streams = Streams(client, "outage")
            streams.ensure_groups()
            deliver(streams, make_group("before", [RIGHT]))
            worker = start(streams)
            wait_for(lambda: length(streams, "experiences") == 1, "the first experience")
            server.kill()
            wait_for(lambda: worker.outage, "the outage being noticed")
            server.start()
            wait_for(lambda: worker.outage is None, "the worker's return")
            deliver(streams, make_group("after", [WRONG]))
            wait_for(lambda: length(streams, "experiences") == 2, "the second experience")
            assert [group.completions[0].reward for group in experiences(streams)] == [10.0, 1.0]
            warnings = [r.message for r in caplog.records if r.levelname == "WARNING"]
            assert len(warnings) == 1, warnings
            assert "Redis cannot be used" in warnings[0]
            worker.stop()
            wait_for(lambda: worker.outage == "stopped" and not list_workers(streams), "the worker's end")
    finally:
        server.kill()


def test_a_worker_that_stops_hands_back_what_it_has_not_finished(
    streams: Streams, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each polite stop would count as a consumer that the groups in hand have killed."""
    go_on = threading.Event()
    monkeypatch.setitem(RULES, "waiting", Row(lambda item, config: float(go_on.wait(30))))
    names = [f"g{number}" for number in range(3)]
    try:
        deliver(streams, *(make_group(name, ["x"]) for name in names))
        before = [(entry.id, entry.payload) for entry in streams.after("rollouts", "0")]
        worker = start(streams, "waiting")
        wait_for(lambda: len(streams.pending("rollouts", worker.id)) == 3, "the groups' being taken")
        worker.stop()
        wait_for(lambda: worker.outage == "stopped" and not list_workers(streams), "the worker's end")
        assert [(entry.id, entry.payload) for entry in streams.after("rollouts", "0")] == before
        assert streams.client.xpending(streams.key("rollouts"), "reward")["pending"] == 0
        assert outcomes(worker) == {"delivered": 0, "dropped": 0, "dead": 0, "handed_back": 3}
    finally:
        go_on.set()
    start(streams)
    wait_for(lambda: length(streams, "experiences") == 3, "another replica's taking them")
    assert not any("reward_deliveries" in entry.fields for entry in streams.tail("experiences", 3))


def test_what_a_worker_could_score_before_it_stopped_is_not_scored_again(
    streams: Streams, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    mended = threading.Event()

    def picky(item: ScoreItem, config: RuleConfig) -> float:
        asked.append(item.response)
        if item.response == "c" and not mended.is_set():
            raise RuntimeError("not yet")
        return 0.5

    monkeypatch.setitem(RULES, "picky", Row(picky))
    deliver(streams, make_group("g1", ["a", "b", "c"]))
    worker = start(streams, "picky", max_attempts=100)
    wait_for(lambda: asked.count("c") == 3, "the third attempt")
    worker.stop()
    wait_for(lambda: worker.outage == "stopped", "the worker's end")
    assert len(keys(streams)) == 1
    asked.clear()
    mended.set()
    start(streams, "picky")
    wait_for(lambda: length(streams, "experiences") == 1, "the experience")
    assert asked == ["c"]
    assert [completion.reward for completion in experiences(streams)[0].completions] == [0.5] * 3
    wait_for(lambda: not keys(streams), "the end of what was kept")


def test_groups_of_a_dead_replica_are_taken_over_and_what_its_ghost_delivered_is_dropped(
    streams: Streams, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Heartbeat, "is_steady", True)
    go_on = threading.Event()
    monkeypatch.setitem(RULES, "waiting", Row(lambda item, config: float(go_on.wait(30))))
    deliver(streams, make_group("g0", ["x"]), make_group("g1", ["x"]))
    (first, _) = Reader(streams, "rollouts", "dead").read(2, 100)
    try:
        worker = start(streams, "waiting")
        wait_for(lambda: len(streams.pending("rollouts", worker.id)) == 2, "the take-over")
        wait_for(lambda: len(worker._scoring) == 2, "both being scored")
        assert streams.forward(first, "rollouts", "experiences", first.fields, first.payload)
    finally:
        go_on.set()
    wait_for(lambda: sum(outcomes(worker).values()) == 2, "the end of both")
    assert outcomes(worker) == {"delivered": 1, "dropped": 1, "dead": 0, "handed_back": 0}
    assert worker._metrics.taken_over._value.get() == 2
    (text,) = [e.fields["text"] for e in streams.tail("events", 9) if e.fields["kind"] == "taken_over"]
    assert text == f"{worker.id} took over 2 groups of dead workers"
