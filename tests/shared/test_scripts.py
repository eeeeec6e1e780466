"""The Lua scripts where Lua itself sets limits. What they do is in `test_stream.py`."""

from shared.entry import Entry
from shared.reader import Reader
from shared.stream import StreamName, Streams

MANY = 8200
"""More than Lua unpacks into one call."""


def test_more_entries_than_lua_can_unpack_are_handed_on_and_released_in_one_step(streams: Streams) -> None:
    ids = [f"id{number}" for number in range(MANY)]
    assert streams.append_prompts([({"id": id}, b"") for id in ids], learner_epoch=1) == MANY
    entries = _read_all(streams, "prompts", "rollout-1")
    moves = [(entry, {"id": entry.id}, b"") for entry in entries]
    assert streams.forward_all(moves, "prompts", "experiences") == [True] * MANY
    assert streams.client.xlen(streams.key("prompts")) == 0
    experiences = _read_all(streams, "experiences", "learner")
    assert [entry.id for entry in experiences] == ids
    streams.release(experiences, ids, learner_epoch=1)
    assert streams.client.xlen(streams.key("experiences")) == 0
    assert streams.pending("experiences", "learner") == []
    assert streams.in_flight() == set()


def _read_all(streams: Streams, source: StreamName, consumer: str) -> list[Entry]:
    entries = Reader(streams, source, consumer).read(MANY)
    assert len(entries) == MANY
    return entries
