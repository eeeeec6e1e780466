"""Rewards that a scorer gave to places in a completion's text, put on the tokens that end there."""

from bisect import bisect_left
from collections.abc import Callable, Sequence

from shared.experience import Completion

Decode = Callable[[Sequence[int]], str]


def token_rewards(completion: Completion, decode: Decode | None) -> list[float]:
    """What is earned at each token; rewards that end at one token add up. [T]

    Raises:
        ValueError: there are rewards at steps, but nothing to find their tokens with.
    """
    ids = list(completion.token_ids)
    rewards = [0.0] * len(ids)
    if completion.step_rewards and decode is None:
        raise ValueError("a completion has rewards at steps: give its tokenizer's decode")
    for step in completion.step_rewards:
        assert decode
        rewards[token_at(ids, step.end, decode)] += step.reward
    return rewards


def token_at(ids: Sequence[int], end: int, decode: Decode) -> int:
    """The position of the token that completes the first `end` characters of the text; else of the last one.

    By bisection over the lengths of decoded prefixes: a token has no text of its own, since some are parts of
    one character.
    """
    found = bisect_left(range(len(ids)), end, key=lambda position: len(decode(ids[: position + 1])))
    return min(found, len(ids) - 1)
