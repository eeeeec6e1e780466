"""The batcher: rows of many callers share batches, and one row's trouble is its own."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.reward.neural.batching import Batcher, Closed, Row, Run
from services.reward.neural.cutting import LOOKED_AT, cheapest_cuts, next_batch
from services.reward.neural.engine import filling


def row(length: int, head: str = "a") -> Row:
    return Row([1] * length, [0], head)


@contextmanager
def batching(run: Run, budget: int = 100, wait_seconds: float = 0.0) -> Iterator[Batcher]:
    batcher = Batcher(run, budget, wait_seconds)
    batcher.batch_cost = 10_000
    try:
        yield batcher
    finally:
        batcher.close()


def lengths(rows: Sequence[Row]) -> list[tuple[float, ...]]:
    return [(float(len(row.ids)),) for row in rows]


def cost(sizes: Sequence[int], cuts: Sequence[int], batch_cost: float) -> float:
    return sum(batch_cost + sizes[start] * (end - start) for start, end in pairwise(cuts))


def every_partition(count: int) -> Iterator[list[int]]:
    for number in range(count):
        for inner in combinations(range(1, count), number):
            yield [0, *inner, count]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=7), st.integers(1, 200), st.integers(1, 99))
def test_no_other_cut_within_the_budget_is_cheaper(sizes: list[int], budget: int, batch_cost: int) -> None:
    sizes.sort(reverse=True)

    def keeps_the_budget(cuts: list[int]) -> bool:
        return all(
            end - start == 1 or sizes[start] * (end - start) <= budget for start, end in pairwise(cuts)
        )

    found = cheapest_cuts(sizes, budget, batch_cost)
    assert (found[0], found[-1]) == (0, len(sizes)) and keeps_the_budget(found)
    others = [cost(sizes, cuts, batch_cost) for cuts in every_partition(len(sizes)) if keeps_the_budget(cuts)]
    assert cost(sizes, found, batch_cost) == min(others)


@given(st.lists(st.tuples(st.integers(1, 40), st.sampled_from("ab")), min_size=1), st.integers(1, 200))
def test_the_oldest_row_runs_next_with_rows_of_its_head_alone(
    sizes: list[tuple[int, str]], budget: int
) -> None:
    rows = [row(length, head) for length, head in sizes]
    batch = next_batch(rows, budget, 20.0)
    assert rows[0] in batch and len(set(batch)) == len(batch) and set(batch) <= set(rows)
    assert {r.head for r in batch} == {rows[0].head}
    assert len(batch) == 1 or len(batch) * max(len(r.ids) for r in batch) <= budget


def test_many_rows_are_cut_in_little_time_whatever_a_batch_costs() -> None:
    rows = [row(1 + place % 500) for place in range(5000)]
    assert len(next_batch(rows, 10**6, 10**6)) == LOOKED_AT
    assert len(next_batch(rows, 10**6, 1.0)) < 10


def test_rows_of_many_threads_share_batches_and_each_gets_its_own_score() -> None:
    seen: list[int] = []

    def run(rows: Sequence[Row]) -> list[tuple[float, ...]]:
        seen.append(len(rows))
        return lengths(rows)

    with batching(run, budget=10_000, wait_seconds=0.2) as batcher:
        rows = [row(n) for n in range(1, 33)]
        threads = [threading.Thread(target=batcher.submit, args=([r],)) for r in rows]
        for thread in threads:
            thread.start()
        assert [r.scores.result(5) for r in rows] == [(float(n),) for n in range(1, 33)]
        for thread in threads:
            thread.join()
    assert len(seen) <= 2, "they came within the time that the first one waits"


def test_a_full_batch_does_not_wait_and_a_lone_row_waits_no_longer_than_it_must() -> None:
    with batching(lengths, budget=10, wait_seconds=30) as batcher:
        rows = [row(5), row(5)]
        batcher.submit(rows)
        assert [r.scores.result(5) for r in rows] == [(5.0,), (5.0,)]
    with batching(lengths, budget=10, wait_seconds=0.05) as batcher:
        lone = row(1)
        batcher.submit([lone])
        assert lone.scores.result(5) == (1.0,)


def test_a_row_that_fails_fails_alone_and_a_batch_too_big_passes_in_parts() -> None:
    def run(rows: Sequence[Row]) -> list[tuple[float, ...]]:
        if len(rows) > 3:
            raise MemoryError("too big")
        if any(len(r.ids) == 7 for r in rows):
            raise RuntimeError("bad row")
        return lengths(rows)

    with batching(run, budget=10_000, wait_seconds=0.05) as batcher:
        rows = [row(n) for n in range(1, 13)]
        batcher.submit(rows)
        with pytest.raises(RuntimeError, match="bad row"):
            rows[6].scores.result(5)
        others = [r for r in rows if len(r.ids) != 7]
        assert [r.scores.result(5) for r in others] == lengths(others)


def test_a_cancelled_row_is_not_run() -> None:
    seen: list[int] = []
    may_go = threading.Event()

    def run(rows: Sequence[Row]) -> list[tuple[float, ...]]:
        seen.extend(len(r.ids) for r in rows)
        assert may_go.wait(5)
        return lengths(rows)

    with batching(run) as batcher:
        first, second, third = row(1), row(2), row(3)
        batcher.submit([first])
        while not seen:
            time.sleep(0.001)
        batcher.submit([second, third])
        assert second.scores.cancel()
        may_go.set()
        assert third.scores.result(5) == (3.0,)
    assert seen == [1, 3]


def test_closing_fails_what_waits_and_refuses_what_comes() -> None:
    batcher = Batcher(lengths, 100, 60.0)
    waiting = row(1)
    batcher.submit([waiting])
    batcher.close()
    with pytest.raises(Closed):
        waiting.scores.result(5)
    with pytest.raises(Closed):
        batcher.submit([row(1)])


@pytest.mark.parametrize(
    ("budget", "longest"), [(32768, 32768), (32768, 4096), (32768, 514), (8, 131072), (8, 2)]
)
def test_the_first_batch_on_a_gpu_is_a_full_one(budget: int, longest: int) -> None:
    lengths = filling(budget, longest)
    assert 0.9 * budget <= sum(lengths) <= budget
    assert max(lengths) <= longest
