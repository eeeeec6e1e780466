"""A consumer that misses nothing: it reads new entries and finds again what it was given but never saw."""

import dataclasses
import time
from typing import Any

import redis

from shared.entry import Entry, parse_entry
from shared.losses import give_up, make_anew
from shared.stream import GROUPS, MAX_DELIVERIES, QueueLost, StreamName, Streams

SUSPECT_DELIVERIES = 3
"""An entry that more consumers than this were given is a suspect: it may be what they died of."""


class Reader:
    """One consumer of a stream. It hands out every entry once per process, also those whose delivery was
    lost on the way or that were claimed from a dead consumer: they sit in its pending list unseen.

    An entry on which several consumers died is handed out only when nothing else is held, and nothing is
    beside it: if it is what kills them, it takes no other entry along.

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
        self._alone = ""  # the suspect that was handed out last
        self._crowded = False  # a suspect waits until nothing is held

    def read(self, count: int, block_ms: int = 1000) -> list[Entry]:
        """Up to `count` entries; waits at most `block_ms` for the first.

        Raises:
        QueueLost: the stream or group was gone; it has been created anew.
        """
        assert count > 0 and block_ms > 0
        if self._alone in self._held:
            time.sleep(block_ms / 1000)
            return []
        try:
            if time.monotonic() >= self._next_sweep:
                self._next_sweep = time.monotonic() + self._sweep_seconds
                recovered = self._unseen(count)
                if recovered or self._crowded:
                    self._next_sweep = 0.0  # there may be more
                    if not recovered:
                        time.sleep(block_ms / 1000)
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

    def _unseen(self, count: int) -> list[Entry]:
        """Entries that are this consumer's and were not handed out; a suspect last, and by itself."""
        pending = self.streams.pending(self.source, self.consumer)
        unseen = [item for item in pending if item["message_id"].decode() not in self._held]
        found: list[Entry] = []
        for item in (item for item in unseen if item["times_delivered"] <= SUSPECT_DELIVERIES):
            found += self._fetch(item)
            if len(found) == count:
                break
        self._crowded = False
        suspects = [item for item in unseen if item["times_delivered"] > SUSPECT_DELIVERIES]
        if suspects and suspects[0]["times_delivered"] % 2:
            # The other way round each time: those on either side of a deadly one get past it.
            suspects.reverse()
        for item in suspects:
            if item["times_delivered"] > MAX_DELIVERIES:
                self._bury(item)
            elif found or self._held:
                self._crowded = True
            else:
                found = self._fetch(item)
                self._alone = found[0].entry_id if found else ""
        self._held.update(entry.entry_id for entry in found)
        return found

    def _fetch(self, item: Any) -> list[Entry]:
        """The entry of an item of the pending list; none if it is gone, which the learner is told."""
        streams, key = self.streams, self.streams.key(self.source)
        entries: Any = streams.client.xrange(key, min=item["message_id"], max=item["message_id"])
        if entries:
            return [dataclasses.replace(parse_entry(entries[0]), deliveries=item["times_delivered"])]
        entry_id = item["message_id"].decode()
        # What was handed on since the list was read is acknowledged already, and not lost.
        if give_up(streams, self.source, entry_id):
            streams.event("lost", self.consumer, f"entry {entry_id} of {self.source} was deleted by someone")
        return []

    def _bury(self, item: Any) -> None:
        for entry in self._fetch(item):
            cause = f"{entry.deliveries} consumers took it and none finished it"
            service, attempts = GROUPS[self.source], entry.deliveries
            self.streams.dead_letter(
                entry, self.source, service, "unfinished", cause, attempts, self.consumer
            )
