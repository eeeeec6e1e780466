"""Who is alive, as Redis knows it."""

import threading
from typing import Any

import pytest

from shared import workers
from shared.stream import Streams
from shared.workers import EXPIRY_SECONDS, Heartbeat, alive_ids, list_workers, worker_id


def test_a_worker_is_listed_from_its_start_to_its_stop(streams: Streams) -> None:
    version = [3]
    heartbeat = Heartbeat(streams, "rollout", "w1", lambda: {"version": version[0], "url": "http://here"})
    heartbeat.start()
    try:
        (facts,) = list_workers(streams, "rollout")
        assert (facts["id"], facts["version"], facts["url"]) == ("w1", 3, "http://here")
        assert list_workers(streams, "reward") == []
        version[0] = 4
        heartbeat.beat()
        assert list_workers(streams)[0]["version"] == 4
        assert 0 < streams.client.ttl(streams.key("worker:w1")) <= EXPIRY_SECONDS
    finally:
        heartbeat.stop()
    assert alive_ids(streams) == set()
    assert [entry.fields["kind"] for entry in streams.tail("events", 9)] == ["join", "leave"]


def test_a_heartbeat_outlives_facts_that_cannot_be_told(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(workers, "BEAT_SECONDS", 0.01)
    told, failed = 0, threading.Event()

    def facts() -> dict[str, Any]:
        nonlocal told
        told += 1
        if told == 2:
            raise RuntimeError("Set changed size during iteration")
        if told == 3:
            failed.set()
        return {}

    heartbeat = Heartbeat(streams, "rollout", "w1", facts)
    heartbeat.start()
    assert failed.wait(20), "it beats again"
    heartbeat.stop()
    assert "Set changed size during iteration" in caplog.text


def test_worker_names_are_never_used_twice() -> None:
    assert worker_id("rollout") != worker_id("rollout")
