"""A consumer that misses nothing: it reads new entries and finds again what it was given but never saw."""

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import redis

from shared.entry import Entry, parse_entry
from shared.losses import make_anew, report_loss
from shared.stream import GROUPS, MAX_DELIVERIES, QueueLost, StreamName, Streams


class Reader:
    """One consumer of a stream. It hands out every entry once per process, also those whose delivery was
    lost on the way or that were claimed from a dead consumer: they sit in its pending list unseen.

    Not thread-safe: one thread reads, any thread may call `done`.
    """

    def __init__(
        self, streams: Streams, source: StreamName, consumer: str, sweep_seconds: float = 5.0
    ) -> None:
        self.streams = streams
        self.source: StreamName = source
        self.consumer = consumer
        self._sweep_seconds = sweep_seconds
        self._next_sweep = 0.0
        self._held: set[str] = set()

    def read(self, count: int, block_ms: int = 1000) -> list[Entry]:
        """Up to `count` entries; waits at most `block_ms` for the first.

        Raises:
        QueueLost: the stream or group was gone; it has been created anew.
        """
        assert count > 0 and block_ms > 0
        try:
            if time.monotonic() >= self._next_sweep:
                self._next_sweep = time.monotonic() + self._sweep_seconds
                recovered = list(self._unseen(count))
                if recovered:
                    self._next_sweep = 0.0  # there may be more
                    return recovered
            reply: Any = self.streams.client.xreadgroup(
                GROUPS[self.source], self.consumer, {self.streams.key(self.source): ">"}, count, block_ms
            )
        except redis.ResponseError as error:
            if "NOGROUP" not in str(error) and "UNBLOCKED" not in str(error):
                raise
            # Only its own: each reader has to see for itself that its stream was lost.
            make_anew(self.streams, self.source)
            self._held.clear()
            raise QueueLost(f"stream {self.source!r} of run {self.streams.run!r} had vanished") from error
        entries = [parse_entry(item) for _, items in reply or [] for item in items]
        self._held.update(entry.entry_id for entry in entries)
        return entries

    def done(self, entry: Entry) -> None:
        """The entry was forwarded, buried or released."""
        self._held.discard(entry.entry_id)

    def sweep_now(self) -> None:
        """Look into the pending list at the next read: after a connection error, or after claiming."""
        self._next_sweep = 0.0

    def _unseen(self, count: int) -> Iterator[Entry]:
        streams = self.streams
        for item in streams.pending(self.source, self.consumer):
            entry_id = item["message_id"].decode()
            if entry_id in self._held:
                continue
            found = streams.client.xrange(streams.key(self.source), min=entry_id, max=entry_id)
            if not found:
                streams.client.xack(streams.key(self.source), GROUPS[self.source], entry_id)
                streams.event(
                    "lost", self.consumer, f"entry {entry_id} of {self.source} was deleted by someone"
                )
                report_loss(streams)
                continue
            entry = dataclasses.replace(parse_entry(found[0]), deliveries=item["times_delivered"])
            if item["times_delivered"] > MAX_DELIVERIES:
                cause = f"{item['times_delivered']} consumers took it and none finished it"
                service, attempts = GROUPS[self.source], item["times_delivered"]
                streams.dead_letter(entry, self.source, service, cause, attempts, self.consumer)
                continue
            self._held.add(entry_id)
            yield entry
            count -= 1
            if not count:
                return
