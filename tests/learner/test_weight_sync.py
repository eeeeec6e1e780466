"""Publishing weights to rollout servers: here to small HTTP servers that keep the contract's books only.

The real server takes real pushes in tests/rollout and tests/e2e.
"""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from services.learner import fleet, weight_sync
from services.learner.fleet import Fleet
from services.learner.prometheus import LearnerMetrics
from services.learner.weight_push import Update
from services.learner.weight_sync import WeightPublisher
from shared.outage import insist
from shared.stream import Streams
from shared.workers import Heartbeat
from tests.learner.weight_server import TENSORS, Server, serving


@pytest.fixture
def publisher(
    streams: Streams, metrics: LearnerMetrics, monkeypatch: pytest.MonkeyPatch
) -> Iterator[WeightPublisher]:
    monkeypatch.setattr(weight_sync, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(fleet, "_FIRST_PAUSE_SECONDS", 0.1)
    made = WeightPublisher(streams, "the-token-of-this-run", 1, metrics)
    yield made
    made.close()


def texts(streams: Streams, kind: str) -> list[str]:
    return [e.fields["text"] for e in streams.tail("events", 1000) if e.fields["kind"] == kind]


def servers_that_are(metrics: LearnerMetrics, state: str) -> float:
    value = metrics.registry.get_sample_value("rollstream_learner_rollout_servers", {"state": state})
    return value or 0.0


def wait_until(publisher: WeightPublisher, done: Any) -> None:
    pause = threading.Event()
    for _ in range(400):
        publisher.check()
        if done():
            return
        pause.wait(0.05)
    raise AssertionError("not within 20 seconds")


def test_every_live_server_has_the_weights_when_publish_returns(
    streams: Streams, publisher: WeightPublisher
) -> None:
    first, second = Server(streams, "r1"), Server(streams, "r2")
    with serving(first, second):
        publisher.publish(TENSORS, version=3)
    for server in (first, second):
        assert server.version == 3
        assert server.authorisations == {"Bearer the-token-of-this-run"}
        assert server.received.keys() == TENSORS.keys()
        assert all(torch.equal(server.received[name], TENSORS[name]) for name in TENSORS)


def test_a_failing_server_holds_up_nobody_and_is_tried_again(
    streams: Streams, publisher: WeightPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = Server(streams, "r1"), Server(streams, "r2", refuse=True)
    with serving(good, bad):
        publisher.publish(TENSORS, version=1)
        assert (good.version, bad.version) == (1, None)
        kinds = {entry.fields["kind"]: entry.fields["text"] for entry in streams.tail("events", 20)}
        assert "answered 500: no" in kinds["push_failed"]
        bad.refuse = False
        wait_until(publisher, lambda: bad.version == 1)


def test_a_heartbeat_without_a_usable_url_ends_nothing(
    streams: Streams, publisher: WeightPublisher, caplog: pytest.LogCaptureFixture
) -> None:
    Heartbeat(streams, "rollout", "r1", dict).beat()
    Heartbeat(streams, "rollout", "r2", lambda: {"url": "http://host:many"}).beat()
    good = Server(streams, "r3")
    with serving(good):
        publisher.publish(TENSORS, version=1)
        publisher.publish(TENSORS, version=2)
    assert good.version == 2
    assert caplog.text.count("r1 tells no url") == 1
    assert "weights did not reach r2: InvalidURL" in caplog.text


def test_a_server_that_leaves_is_let_go(
    streams: Streams, publisher: WeightPublisher, metrics: LearnerMetrics
) -> None:
    Heartbeat(streams, "rollout", "r1", lambda: {"url": "http://127.0.0.1:1", "state": "leaving"}).beat()
    publisher.publish(TENSORS, version=1)
    assert not texts(streams, "push_failed")
    assert sum(servers_that_are(metrics, state) for state in fleet.STATES) == 0


def test_the_keeper_has_ended_when_the_connections_are_closed(
    streams: Streams, publisher: WeightPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher.publish(TENSORS, version=1)
    looking = threading.Event()

    def slowly(*_: Any) -> list[dict[str, Any]]:
        looking.set()
        time.sleep(0.5)
        return []

    monkeypatch.setattr(weight_sync, "list_workers", slowly)
    assert looking.wait(20)
    publisher.close()
    assert not publisher._keeper.is_alive()


def test_a_server_that_joins_later_gets_the_current_weights(
    streams: Streams, publisher: WeightPublisher
) -> None:
    publisher.publish(TENSORS, version=5)
    late = Server(streams, "late")
    with serving(late):
        wait_until(publisher, lambda: late.version == 5)


def test_a_server_that_hangs_holds_up_neither_the_learner_nor_the_others(
    streams: Streams, publisher: WeightPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_sync, "_OTHERS_SECONDS", 0.3)
    good, stopped = Server(streams, "r1"), Server(streams, "r2")
    stopped.goes_on.clear()
    with serving(good, stopped):
        started = time.monotonic()
        for version in range(1, 11):
            publisher.publish(TENSORS, version)
            assert good.version == version
        assert time.monotonic() - started < 0.3 + 2.0, "only the first publication waited for it, and briefly"
        assert stopped.version is None and stopped.requests == 1
        stopped.goes_on.set()
        wait_until(publisher, lambda: stopped.version == 10)


def test_pushes_that_the_keeper_started_are_waited_for_too(
    streams: Streams, publisher: WeightPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(streams, "r1")

    def late(look: Any, *arguments: Any) -> Any:
        """The keeper looks before the publication does."""
        wait_until(publisher, lambda: server.requests)
        threading.Timer(0.3, server.goes_on.set).start()
        return insist(look, *arguments)

    monkeypatch.setattr(weight_sync, "insist", late)
    server.goes_on.clear()
    with serving(server):
        publisher.publish(TENSORS, version=1)
        assert server.version == 1


def test_a_server_that_still_takes_the_last_version_is_waited_for_if_there_is_no_other(
    streams: Streams, publisher: WeightPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    only = Server(streams, "r1")
    with serving(only):
        only.goes_on.clear()
        with monkeypatch.context() as briefly:
            briefly.setattr(weight_sync, "_FIRST_SECONDS", 0.1)
            publisher.publish(TENSORS, version=1)
        threading.Timer(0.3, only.goes_on.set).start()
        publisher.publish(TENSORS, version=2)
        assert only.version == 2


def test_while_the_only_server_hangs_a_publication_waits_for_a_bounded_time(
    streams: Streams, publisher: WeightPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_sync, "_FIRST_SECONDS", 0.3)
    only = Server(streams, "r1")
    only.goes_on.clear()
    with serving(only):
        started = time.monotonic()
        publisher.publish(TENSORS, version=1)
        assert 0.3 <= time.monotonic() - started < 3.0


def test_a_server_that_diverged_is_repaired_counted_and_told_about(
    streams: Streams, publisher: WeightPublisher, metrics: LearnerMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = Server(streams, "r1"), Server(streams, "r2")
    with serving(good, bad):
        publisher.publish(TENSORS, version=1)
        wait_until(publisher, lambda: servers_that_are(metrics, "current") == 2)
        bad.goes_on.clear()
        bad.digest = "of something else"
        bad.heartbeat.beat()
        wait_until(publisher, lambda: servers_that_are(metrics, "diverged") == 1)
        wait_until(publisher, lambda: texts(streams, "server") == ["r2 is diverged, serving version 1"])
        bad.goes_on.set()
        wait_until(publisher, lambda: bad.digest == publisher.digest(1))
        wait_until(publisher, lambda: texts(streams, "server")[1:] == ["r2 is current, serving version 1"])
        assert (servers_that_are(metrics, "diverged"), servers_that_are(metrics, "current")) == (0, 2)


def test_a_server_that_stays_behind_is_told_about_but_not_while_it_takes_the_weights(
    streams: Streams, metrics: LearnerMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "_PATIENCE_SECONDS", 0.0)
    known, update = Fleet(streams, metrics), Update(TENSORS, version=2, learner_epoch=1)
    server = {"id": "r2", "url": "http://r2", "version": 1, "digest": "of 1", "learner_epoch": 0}
    assert known.in_need([server], update, taking={"r2"}) == []
    assert not texts(streams, "server")
    assert known.in_need([server], update, taking=()) == [server]
    assert texts(streams, "server") == ["r2 is behind, serving version 1"]
    served = {"version": 2, "digest": update.digest, "learner_epoch": 1}
    known.in_need([server | served], update, taking=())
    assert texts(streams, "server")[1:] == ["r2 is current, serving version 2"]


def test_a_server_that_fails_is_tried_less_and_less_often(
    streams: Streams, publisher: WeightPublisher, metrics: LearnerMetrics
) -> None:
    bad = Server(streams, "r1", refuse=True)
    with serving(bad):
        started = time.monotonic()
        publisher.publish(TENSORS, version=1)
        wait_until(publisher, lambda: bad.requests == 4)
        assert time.monotonic() - started > 0.1 + 0.2 + 0.4
        assert servers_that_are(metrics, "refused") == 1, "it answers"
