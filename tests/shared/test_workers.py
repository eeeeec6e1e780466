"""Who is alive, as Redis knows it."""

import threading
import time
from typing import Any

import pytest
import redis

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


def test_a_worker_is_steady_only_after_beats_without_a_gap(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While Redis is full or away, the keys of the living expire too: nobody may be called dead by that."""
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    heartbeat = Heartbeat(streams, "rollout", "w1", dict)

    def beat_for(seconds: int) -> None:
        for _ in range(seconds):
            clock[0] += 1
            heartbeat.beat()

    heartbeat.beat()
    assert not heartbeat.is_steady, "others may have started after the same outage"
    beat_for(EXPIRY_SECONDS)
    assert heartbeat.is_steady
    streams.client.config_set("maxmemory", 1)
    try:
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            beat_for(1)
    finally:
        streams.client.config_set("maxmemory", 0)
    assert heartbeat.is_steady, "nobody's key can have expired"
    clock[0] += EXPIRY_SECONDS
    assert not heartbeat.is_steady
    beat_for(EXPIRY_SECONDS)
    assert not heartbeat.is_steady
    beat_for(1)
    assert heartbeat.is_steady
    streams.client.delete(streams.key("worker:w1"))  # Redis was emptied, or this machine slept
    beat_for(1)
    assert not heartbeat.is_steady
