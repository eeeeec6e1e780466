"""How full each stream of a run is, and who takes from it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis
from rich.table import Table

from shared.stream import GROUPS, STREAMS, StreamName, Streams

OTHERS = ("dead", "events")
LEGEND = (
    "length: entries on the stream, all still to be finished; experiences stay until the checkpoint after "
    "their training. pending: of these, taken by a consumer. "
    "lag: of these, taken by nobody yet. oldest: age of the oldest entry. consumers: readers that the group "
    "knows, also dead ones whose entries nobody has taken over yet."
)


@dataclass(frozen=True)
class Queue:
    """One stream at one moment."""

    name: str
    length: int
    """Entries on it. One that is acknowledged is deleted, so all of these are still to be finished."""
    pending: int | None = None
    """Given to a consumer and not finished; None for a stream without a group."""
    consumers: int | None = None
    oldest_seconds: float | None = None
    """Age of the oldest entry; None if there is none."""

    @property
    def lag(self) -> int | None:
        """Entries that no consumer has taken yet."""
        return None if self.pending is None else max(self.length - self.pending, 0)


def read_queues(streams: Streams) -> list[Queue]:
    """The data path from prompts to experiences, then dead letters and events."""
    seconds, micros = streams.client.time()  # type: ignore[misc]
    now = seconds + micros / 1e6
    return [_read(streams, name, now) for name in (*STREAMS, *OTHERS)]


def queue_table(queues: Sequence[Queue]) -> Table:
    table = Table("stream", "length", "pending", "lag", "oldest", "consumers", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for queue in queues:
        table.add_row(
            queue.name,
            str(queue.length),
            _number(queue.pending),
            _number(queue.lag),
            "-" if queue.oldest_seconds is None else f"{queue.oldest_seconds:.1f} s",
            _number(queue.consumers),
        )
    return table


def _read(streams: Streams, name: str, now: float) -> Queue:
    client, key = streams.client, streams.key(name)
    length: Any = client.xlen(key)
    first: Any = client.xrange(key, count=1)
    oldest = now - int(first[0][0].split(b"-")[0]) / 1000 if first else None
    group = _group(streams, name)
    if group is None:
        return Queue(name, length, oldest_seconds=oldest)
    return Queue(name, length, group["pending"], group["consumers"], oldest)


def _group(streams: Streams, name: str) -> dict[str, Any] | None:
    if name not in GROUPS:
        return None
    stream: StreamName = name
    try:
        groups: Any = streams.client.xinfo_groups(streams.key(stream))
    except redis.ResponseError as error:
        if "no such key" in str(error):
            return None
        raise
    return next((group for group in groups if group["name"].decode() == GROUPS[stream]), None)


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)
