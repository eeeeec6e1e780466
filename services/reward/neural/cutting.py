"""Which of the waiting rows run together: padding and batches both cost, counted in tokens."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol, TypeVar

LOOKED_AT = 256
"""Waiting rows among which a batch is chosen, the oldest ones."""


class Sized(Protocol):
    ids: list[int]
    head: str


AnyRow = TypeVar("AnyRow", bound=Sized)


def next_batch(rows: Sequence[AnyRow], max_tokens: int, batch_cost: float) -> list[AnyRow]:
    """The batch with the first of `rows` in it, of the cheapest way to run all that share its head.

    It is one batch of many, since rows that come while it runs may make the others cheaper. With the oldest
    row first nothing waits for ever.

    Args:
        rows: oldest first; at least one.
        max_tokens: size of a batch with its padding; a longer row is a batch of its own.
        batch_cost: tokens that take as long as one batch more.
    """
    oldest = rows[0]
    alike = [row for row in rows[:LOOKED_AT] if row.head == oldest.head]
    alike.sort(key=lambda row: -len(row.ids))
    cuts = cheapest_cuts([len(row.ids) for row in alike], max_tokens, batch_cost)
    place = alike.index(oldest)
    return next(alike[start:end] for start, end in pairwise(cuts) if end > place)


def cheapest_cuts(lengths: Sequence[int], max_tokens: int, batch_cost: float) -> list[int]:
    """Where to cut rows, longest first, into batches so that padded tokens and batches cost least in sum.

    By dynamic programming over the ends of batches. A batch of a cheapest partition wastes no more than
    `batch_cost * (1 + ln rows)` tokens: cutting it before its row m saves (rows - m) * (longest - length_m)
    tokens and costs a batch, so each of those is at most `batch_cost`, and the waste is the sum of
    (longest - length_m).

    Returns:
        0, the end of each batch, and so at last the number of rows.
    """
    count = len(lengths)
    cost = [0.0] + [math.inf] * count
    start_of = [0] * (count + 1)
    most_waste = [batch_cost * (1 + math.log(rows)) for rows in range(1, count + 1)]
    for start, longest in enumerate(lengths):
        waste, total, most = 0, cost[start] + batch_cost, cost[start] + batch_cost + max(longest, max_tokens)
        for end, length, allowed in zip(
            range(start + 1, count + 1), lengths[start:], most_waste, strict=False
        ):
            waste += longest - length
            total += longest
            if waste > allowed or total > most:
                break
            if total < cost[end]:
                cost[end], start_of[end] = total, start
    cuts = [count]
    while cuts[-1]:
        cuts.append(start_of[cuts[-1]])
    return cuts[::-1]
