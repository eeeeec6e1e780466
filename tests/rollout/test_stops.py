"""Where a stop sequence of several tokens ends a completion."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.rollout.stops import cut_spans, end_of_first_stop
from shared.experience import VersionSpan

Stops = list[tuple[int, ...]]


@pytest.mark.parametrize(
    ("tokens", "stops", "end"),
    [
        ([5, 7, 8, 9], [(7, 8)], 3),
        ([7, 8, 9, 9], [(7, 8)], 2),
        ([5, 6, 7, 8], [(7, 8)], 4),
        ([5, 7, 5, 8], [(7, 8)], None),
        ([8], [(7, 8)], None),
        ([], [(7, 8)], None),
        ([7, 7, 8], [(7, 8)], 3),
        ([7, 8, 7, 8], [(7, 8)], 2),
        ([1, 2, 3, 4], [(3, 4), (1, 2, 3)], 3),
        ([1, 2, 3, 4], [(1, 2, 3, 4), (2, 3)], 3),
        ([1, 2, 3], [], None),
    ],
    ids=str,
)
def test_a_completion_ends_with_the_stop_sequence_completed_first(
    tokens: list[int], stops: Stops, end: int | None
) -> None:
    assert end_of_first_stop(tokens, stops) == end


small = st.integers(0, 2)
sequences = st.lists(st.lists(small, min_size=1, max_size=3).map(tuple), max_size=3)


@given(tokens=st.lists(small, max_size=12), stops=sequences)
def test_the_end_is_the_shortest_beginning_whose_tail_is_a_stop(tokens: list[int], stops: Stops) -> None:
    ends = [n for n in range(1, len(tokens) + 1) if any(tuple(tokens[:n][-len(s) :]) == s for s in stops)]
    assert end_of_first_stop(tokens, stops) == (ends[0] if ends else None)


@given(tokens=st.lists(small, max_size=12), stops=sequences, pace=st.integers(1, 4))
def test_growing_tokens_read_once_end_where_the_whole_ends(
    tokens: list[int], stops: Stops, pace: int
) -> None:
    found, seen = None, 0
    for length in [*range(pace, len(tokens), pace), len(tokens)]:
        found = found or end_of_first_stop(tokens[:length], stops, seen)
        seen = length
    assert found == end_of_first_stop(tokens, stops)


@given(lengths=st.lists(st.integers(1, 4), min_size=1, max_size=4), data=st.data())
def test_cut_spans_cover_the_tokens_that_are_kept(lengths: list[int], data: st.DataObject) -> None:
    spans = [VersionSpan(version, length) for version, length in enumerate(lengths)]
    versions = [span.version for span in spans for _ in range(span.tokens)]
    kept = data.draw(st.integers(1, len(versions)))
    cut = cut_spans(spans, kept)
    assert [span.version for span in cut for _ in range(span.tokens)] == versions[:kept]
    assert all(span.tokens >= 1 for span in cut)
