"""One number from the numbers of a response's steps."""

import math
from collections.abc import Callable, Sequence
from typing import Literal

Aggregation = Literal["mean", "min", "product", "last"]

_FUNCTIONS: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": lambda scores: math.fsum(scores) / len(scores),
    "min": min,
    "product": math.prod,
    "last": lambda scores: scores[-1],
}


def aggregate(scores: Sequence[float], how: Aggregation) -> float:
    """The number that stands for all of `scores`, of which there is at least one."""
    return float(_FUNCTIONS[how](scores))
