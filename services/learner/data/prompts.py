"""The order in which prompts are issued: without end, and a pure function of seed and position."""

import math
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from shared.experience import Int32Array, Prompt, Sampling, prompt_id


class Row(NamedTuple):
    text: str
    """The rendered prompt."""
    token_ids: Int32Array
    ground_truth: str | None
    metadata: dict[str, Any]


class Dataset(NamedTuple):
    name: str
    rows: list[Row]
    too_long: int = 0
    """Rows left out because their prompt was over the length limit."""
    weight: float | None = None
    """Relative share of the prompts; None: its rows count like all others."""


class PromptSource:
    """Prompts of one or several datasets.

    An epoch of the mixture gives every dataset a fixed number of turns, in proportion to its weight, in an
    order that depends only on seed and epoch. Without weights the turns are the row counts, so that an epoch
    is one pass over all rows. At its turn a dataset gives its next row; it walks through its rows in passes
    of its own, each in a new order that depends only on seed, dataset and pass. So no row comes again before
    all rows of its dataset have come.

    `position` counts the prompts taken so far; it is the whole state, so a resumed run goes on exactly there.
    """

    def __init__(self, run: str, datasets: Sequence[Dataset], seed: int, n: int, sampling: Sampling) -> None:
        self._run = run
        self._datasets = datasets
        self._seed = seed
        self._n = n
        self._sampling = sampling
        self._turns = turns_per_epoch(datasets)
        self._mixture: list[tuple[int, int]] = []
        self._mixture_epoch = -1
        self._orders: dict[int, tuple[int, list[int]]] = {}  # dataset -> pass, order of its rows
        self.position = 0

    def take(self, issued_version: int) -> Prompt:
        """The next prompt, stamped with the policy version that is current now."""
        prompt = self.at(self.position, issued_version)
        self.position += 1
        return prompt

    def at(self, position: int, issued_version: int) -> Prompt:
        """The prompt at any position."""
        number, epoch, index = self._place(position)
        dataset = self._datasets[number]
        row = dataset.rows[index]
        return Prompt(
            id=prompt_id(self._run, dataset.name, epoch, index),
            epoch=epoch,
            index=index,
            n=self._n,
            issued_version=issued_version,
            text=row.text,
            token_ids=row.token_ids,
            sampling=self._sampling.of_prompt(dataset.name, epoch, index),
            ground_truth=row.ground_truth,
            metadata=row.metadata,
        )

    def _place(self, position: int) -> tuple[int, int, int]:
        """Dataset, pass over it, and row at a position."""
        mixture_epoch, offset = divmod(position, sum(self._turns))
        if mixture_epoch != self._mixture_epoch:
            self._mixture = _mixture(self._turns, f"{self._seed}/mixture/{mixture_epoch}")
            self._mixture_epoch = mixture_epoch
        number, turn = self._mixture[offset]
        taken = mixture_epoch * self._turns[number] + turn
        epoch, offset = divmod(taken, len(self._datasets[number].rows))
        if self._orders.get(number, (-1, []))[0] != epoch:
            # The first dataset's key has no number: its order is the same alone and beside others.
            key = f"{self._seed}/{epoch}" + (f"/{number}" if number else "")
            self._orders[number] = epoch, shuffled(len(self._datasets[number].rows), key)
        return number, epoch, self._orders[number][1][offset]


def turns_per_epoch(datasets: Sequence[Dataset]) -> list[int]:
    """How many prompts each dataset gives in one epoch of the mixture.

    The epoch is as long as all rows together, or as it must be for the smallest weight to get a turn. Turns
    are the weights' shares of it, rounded by largest remainder (Hamilton's method): each within 1 of exact.
    """
    weights = [len(dataset.rows) if dataset.weight is None else dataset.weight for dataset in datasets]
    whole = sum(weights)
    length = max(sum(len(dataset.rows) for dataset in datasets), math.ceil(whole / min(weights)))
    quotas = [weight / whole * length for weight in weights]
    turns = [math.floor(quota) for quota in quotas]
    by_remainder = sorted(range(len(quotas)), key=lambda number: turns[number] - quotas[number])
    for number in by_remainder[: length - sum(turns)]:
        turns[number] += 1
    return turns


def shuffled(count: int, key: str) -> list[int]:
    """A permutation that depends only on the key."""
    order = list(range(count))
    random.Random(key).shuffle(order)
    return order


def _mixture(turns: Sequence[int], key: str) -> list[tuple[int, int]]:
    """For each prompt of an epoch: its dataset, and how many of that dataset came before it in the epoch."""
    order = [number for number, count in enumerate(turns) for _ in range(count)]
    random.Random(key).shuffle(order)
    seen = [0] * len(turns)
    places = []
    for number in order:
        places.append((number, seen[number]))
        seen[number] += 1
    return places
