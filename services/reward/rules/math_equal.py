"""Mathematical equality, decided by math-verify. Only for processes that can be killed: it may never end."""

from typing import Any, Literal

from services.reward.math_answer import Tags, boxed_answer, tagged_answer
from services.reward.protocol import Unscorable
from services.reward.rules.config import RuleConfig
from services.reward.rules.required import required_answer
from shared.scoring import ScoreItem


class MathVerifyConfig(RuleConfig):
    answer_in: Literal["anywhere", "box", "tags"] = "anywhere"
    """Where the answer must stand. `anywhere` leaves the search to math-verify, which prefers boxes."""
    tags: Tags = Tags()
    """The texts that frame the answer, where it stands in tags; without it, those of `[reward]`."""
    decimals: int = 6
    """Places to which two decimal numbers must agree."""


def math_verify(item: ScoreItem, config: MathVerifyConfig) -> float:
    """1 if the answer equals the ground truth as mathematics (`1/2` and `0.5`, `x+1` and `1+x`), else 0.

    Raises:
    Unscorable: no ground truth, or one that cannot be read as mathematics.
    Source: math-verify; its own timeouts, which need signals, are off: the pool's deadline ends it.
    """
    truth = required_answer(item)
    expected = read_mathematics(f"\\boxed{{{truth}}}") or read_mathematics(truth)
    if not expected:
        raise Unscorable(f"needs a ground_truth that can be read as mathematics, not {truth[:80]!r}")
    answer: str | None = item.response
    if config.answer_in == "box":
        answer = boxed_answer(item.response)
    elif config.answer_in == "tags":
        answer = tagged_answer(item.response, config.tags)
    found = read_mathematics(answer) if answer else []
    return float(bool(found) and are_equal(expected, found, config.decimals))


def read_mathematics(text: str) -> list[Any]:
    """What math-verify can make of `text`: expressions and their texts; empty if nothing."""
    from math_verify import parse  # it takes a second, and sympy with it

    return parse(text, parsing_timeout=None)


def are_equal(expected: list[Any], found: list[Any], decimals: int = 6) -> bool:
    """Whether any of `found` equals any of `expected`; the order matters to math-verify for inequalities."""
    from math_verify import verify

    return bool(verify(expected, found, float_rounding=decimals, timeout_seconds=None))
