"""Who is alive: each service process keeps a key with a time to live, holding what others need to know."""

import contextlib
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import redis

from shared.stream import Streams

log = logging.getLogger("rollstream")

BEAT_SECONDS = 2.0
EXPIRY_SECONDS = 10
"""A worker unheard for this long is taken for dead, and what it held is given to others."""


def worker_id(service: str) -> str:
    """A name no other process has had: `rollout-host-pid-random`."""
    return f"{service}-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"


def list_workers(streams: Streams, service: str | None = None) -> list[dict[str, Any]]:
    """Facts of all live workers (of one service), sorted by id."""
    keys = sorted(streams.client.scan_iter(match=_escaped(streams.key("worker:")) + "*", count=1000))
    values = streams.client.mget(keys) if keys else []
    found = [json.loads(value) for value in values if value]
    return [facts for facts in found if service in (None, facts["service"])]


def alive_ids(streams: Streams) -> set[str]:
    return {facts["id"] for facts in list_workers(streams)}


def _escaped(pattern: str) -> str:
    return "".join(f"[{char}]" if char in "[]*?" else char for char in pattern)


class Heartbeat:
    """Announces a worker from a thread of its own, so that a busy service still counts as alive."""

    def __init__(self, streams: Streams, service: str, id: str, facts: Callable[[], dict[str, Any]]) -> None:
        self._streams = streams
        self._service = service
        self._id = id
        self._facts = facts
        self._since = round(time.time(), 3)
        self._last_beat = self._steady_since = float("-inf")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Announce once before returning: no reader may pass for dead before its first beat."""
        self.beat()
        self._streams.event("join", self._service, self._id)
        self._thread.start()

    def beat(self) -> None:
        """Announce now, for example after a version change."""
        known = {"service": self._service, "id": self._id, "pid": os.getpid(), "since": self._since}
        value = json.dumps({**known, **self._facts()})
        before = self._streams.client.set(self._key, value, ex=EXPIRY_SECONDS, get=True)
        now = time.monotonic()
        if before is None or not self._is_recent(now):
            self._steady_since = now
        self._last_beat = now

    @property
    def is_steady(self) -> bool:
        """Whether every beat of the last `EXPIRY_SECONDS` got through.

        Only then may this worker call another one dead: while Redis is away or cannot write, the keys of the
        living expire too, and for so long afterwards not all of them need have come back.
        """
        now = time.monotonic()
        return self._is_recent(now) and now - self._steady_since >= EXPIRY_SECONDS

    def _is_recent(self, now: float) -> bool:
        return now - self._last_beat <= EXPIRY_SECONDS / 2

    def stop(self) -> None:
        """Leave politely: what this worker still holds may be taken over at once.

        Without Redis there is nobody to tell, and the key expires by itself.
        """
        self._stop.set()
        self._thread.join(timeout=BEAT_SECONDS)
        with contextlib.suppress(redis.ConnectionError, redis.TimeoutError):
            self._streams.client.delete(self._key)
            self._streams.event("leave", self._service, self._id)

    @property
    def _key(self) -> str:
        return self._streams.heartbeat_key(self._id)

    def _run(self) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            try:
                self.beat()
            except redis.RedisError:
                continue  # the key expires by itself; the stream reader reports the outage
            except Exception:  # of the service's facts: a worker that works must not count as dead
                log.exception("this heartbeat of %s is left out", self._id)
