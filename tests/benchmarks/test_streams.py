"""What the benchmark of the streams moves: groups through the real streams, and their bytes by redis-py."""

from typing import Any

import pytest

from benchmarks.hops import SIZES, Ours, Raw, Size, entries_of, make_completions, make_rows
from shared.codec import decode_group, decode_prompt
from shared.stream import STREAMS, Streams

SMALL = Size((3, 5), 2, (4, 9), 2.0)


def lengths(streams: Streams) -> list[int]:
    return [streams.client.xlen(streams.key(name)) for name in STREAMS]


@pytest.mark.parametrize("together", [1, 4, 64])
def test_every_group_comes_round_scored_and_leaves_nothing_behind(streams: Streams, together: int) -> None:
    ours = Ours(streams, SMALL, groups=6, together=together)
    for _ in range(2):
        groups = ours.batch()
        assert len({group.prompt.id for group in groups}) == 6
        for group in groups:
            assert [completion.reward for completion in group.completions] == [1.0, 1.0]
            assert all(4 <= len(completion.token_ids) <= 9 for completion in group.completions)
    assert lengths(streams) == [0, 0, 0]
    assert streams.in_flight() == set()


def test_a_hop_leaves_its_entries_on_the_next_stream(streams: Streams) -> None:
    ours = Ours(streams, SMALL, groups=5, together=2)
    for hop, expected in ((ours.issue, [5, 0, 0]), (ours.generate, [0, 5, 0]), (ours.score, [0, 0, 5])):
        hop()
        assert lengths(streams) == expected


def test_redis_py_moves_the_bytes_that_ours_has_on_each_stream(streams: Streams) -> None:
    recorded = entries_of(Ours(streams, SMALL, groups=3, together=3))
    assert [decode_prompt(fields[b"payload"]).n for fields in recorded["prompts"]] == [2, 2, 2]
    for name in ("rollouts", "experiences"):
        scored = [decode_group(fields[b"payload"]).completions[0].reward for fields in recorded[name]]
        assert scored == [None if name == "rollouts" else 1.0] * 3
    raw = Raw(streams.client, recorded, streams.key("raw-"))
    assert raw.nbytes == sum(
        len(name) + len(value)
        for stream in STREAMS
        for fields in recorded[stream]
        for name, value in fields.items()
    )
    assert raw.batch() == 3
    for stream in STREAMS:
        items: Any = streams.client.xrange(raw.key(stream))
        assert [fields for _, fields in items] == recorded[stream]
        assert streams.client.xpending(raw.key(stream), "worker")["pending"] == 0
    raw.trim()
    assert [streams.client.xlen(raw.key(stream)) for stream in STREAMS] == [0, 0, 0]
    assert raw.batch() == 3


def test_payloads_have_the_sizes_that_they_are_named_for() -> None:
    size = SIZES["gsm8k"]
    rows = make_rows(size, 50)
    assert all(60 <= len(row.token_ids) <= 180 for row in rows)
    completions = [completion for number in range(50) for completion in make_completions(size, number)]
    assert len(completions) == 200
    mean = sum(len(completion.token_ids) for completion in completions) / len(completions)
    assert 250 < mean < 330
    assert all(len(c.token_ids) == len(c.logprobs) == len(c.text) // 4 for c in completions)
    assert make_completions(size, 7) == make_completions(size, 7) != make_completions(size, 8)
