"""What a worker does with entries that it will not finish, because it leaves or is behind the learner."""

from typing import Any

from shared.entry import Entry, parse_entry
from shared.stream import StreamName, Streams


def hand_back(streams: Streams, source: StreamName, entry: Entry) -> bool:
    """Put an entry at the end of its stream, as one that was never delivered.

    Nothing is put back, and False returned, if the learner has purged it or somebody else has finished it.
    """
    return streams.forward(entry, source, source, entry.fields, entry.payload)


def hand_back_all(streams: Streams, source: StreamName, consumer: str) -> int:
    """Everything that `consumer` was given and has not finished. Returns the number of entries."""
    key = streams.key(source)
    ids = [item["message_id"] for item in streams.pending(source, consumer)]
    found: list[Any] = [item for id in ids for item in streams.client.xrange(key, min=id, max=id) or ()]
    return sum(hand_back(streams, source, parse_entry(item)) for item in found)
