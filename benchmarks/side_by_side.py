"""Contenders that take their turns within each round, and the table of their medians."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

Rates = dict[str, list[float]]
"""By contender, what it did a second in each round."""


def in_turn(contenders: Mapping[str, Callable[[], float]], amount: int, rounds: int) -> Rates:
    """Let each do `amount` of work in every round. A contender gives the seconds that it took."""
    rates: Rates = {name: [] for name in contenders}
    for number in range(-1, rounds):  # the first round warms up
        for name, contender in contenders.items():
            seconds = contender()
            if number >= 0:
                rates[name].append(amount / seconds)
    return rates


def seconds_of(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def print_rates(rates: Rates, unit: str, bound: str, target: str) -> None:
    print(f"| | {unit}, median | min | max | ratio to {bound}, {target} |")
    print("|---|---|---|---|---|")
    for name, taken in rates.items():
        print(
            f"| {name} | {statistics.median(taken):,.0f} | {min(taken):,.0f} | {max(taken):,.0f} | "
            f"{ratio(rates, name, bound):.2f} |"
        )


def ratio(rates: Rates, one: str, other: str) -> float:
    """Of the medians."""
    return statistics.median(rates[one]) / statistics.median(rates[other])


def fastest(rates: Rates, names: Sequence[str]) -> str:
    return max(names, key=lambda name: statistics.median(rates[name]))


def quantile(values: Sequence[float], share: float) -> float:
    """The least value that at least `share` of all do not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * share) - 1)]
