"""Data that Redis has lost: noticed by whoever reads the stream, made good by the learner, who issues again.

A reader that finds its stream gone makes it anew and leaves a mark. The learner compares the mark, and the
identity of the Redis process, with what it saw before: a process that was restarted, or replaced by its
replica, may have gone back in time without a trace on any stream.
"""

import time
import uuid
from typing import Any, Literal

from shared import scripts
from shared.stream import GROUPS, StreamName, Streams

_LOOK_SECONDS = 1.0

Loss = Literal["restart", "loss"]


def make_anew(streams: Streams, stream: StreamName) -> None:
    """Create a stream that has vanished and tell the learner, in one step; nothing if somebody was first."""
    _mark(streams, scripts.MAKE_ANEW, stream)


def give_up(streams: Streams, stream: StreamName, entry_id: str) -> bool:
    """Acknowledge an entry that is gone and tell the learner, in one step. False if somebody was first."""
    return _mark(streams, scripts.GIVE_UP, stream, entry_id)


def _mark(streams: Streams, script: str, stream: StreamName, *arguments: str) -> bool:
    run = streams.client.register_script(script)
    keys = [streams.key(stream), streams.key("lost")]
    return bool(run(keys=keys, args=[GROUPS[stream], *arguments, uuid.uuid4().hex]))


class LossWatch:
    """What the learner has seen of Redis, to tell whether data may be missing since."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._process, self._mark = self._find()
        self._next_look = 0.0

    def look(self) -> Loss | None:
        """What has come to light since the last look; at most one look a second is a real one."""
        if time.monotonic() < self._next_look:
            return None
        process, mark = self._find()
        restarted, lost = process != self._process, mark is not None and mark != self._mark
        self._process, self._mark = process, mark
        self._next_look = time.monotonic() + _LOOK_SECONDS
        return "loss" if lost else "restart" if restarted else None

    def look_now(self) -> None:
        """Let the next look be a real one."""
        self._next_look = 0.0

    def _find(self) -> tuple[str, Any]:
        client = self._streams.client
        return client.info("server")["run_id"], client.get(self._streams.key("lost"))
