"""Mathematical equality, decided by math-verify. Only for processes that can be killed: it may never end.

Its own timeouts are off: they need signals and fail outside a main thread. The pool's deadline ends it.
math-verify is imported where it is used: it takes half a second, and brings sympy.
"""

import logging
from typing import Any, Literal

from services.reward.math_answer import Tags, answer_line, boxed_answer, tagged_answer
from services.reward.protocol import Unscorable
from services.reward.rules.config import RuleConfig
from services.reward.rules.required import required_answer
from shared.scoring import ScoreItem

# It warns at every call that its timeouts are off.
logging.getLogger("math_verify").setLevel(logging.ERROR)


class MathVerifyConfig(RuleConfig):
    answer_in: Literal["anywhere", "box", "tags", "answer_line"] = "anywhere"
    """Where the answer must stand. `anywhere` takes answer tags if there are any, else leaves the search to
    math-verify, which prefers boxes to other formulas and later ones to earlier ones."""
    tags: Tags = Tags()
    """The texts that frame the answer, where it stands in tags; without it, those of `[reward]`."""
    decimals: int = 6
    """Places to which two decimal numbers must agree."""


def math_verify(item: ScoreItem, config: MathVerifyConfig) -> float:
    """1 if the answer equals the ground truth as mathematics (`1/2` and `0.5`, `x+1` and `1+x`), else 0.

    Raises:
    Unscorable: no ground truth, or one that cannot be read as mathematics.
    Source: math-verify, with the answer and the ground truth each read as a box's content.
    """
    truth = required_answer(item)
    expected = read_answer(truth) or read_text(truth)
    if not expected:
        raise Unscorable(f"needs a ground_truth that can be read as mathematics, not {truth[:80]!r}")
    match config.answer_in:
        case "box":
            answer = boxed_answer(item.response)
        case "answer_line":
            answer = answer_line(item.response)
        case "anywhere" | "tags":
            answer = tagged_answer(item.response, config.tags)
    if config.answer_in == "anywhere" and answer is None:
        found = read_text(item.response)
    else:
        found = read_answer(answer) if answer else []
    return float(bool(found) and are_equal(expected, found, config.decimals))


def read_answer(answer: str) -> list[Any]:
    """What math-verify can make of an answer by itself: expressions and their texts; empty if nothing.

    Source: ColossalChat, `coati/distributed/reward/reward_fn.py`, `verify_math_representation`.
    """
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    normalization = NormalizationConfig(
        basic_latex=True, units=True, boxed="all", nits=False, malformed_operators=False
    )
    boxes_first = LatexExtractionConfig(normalization_config=normalization, boxed_match_priority=0)
    boxed = answer if answer.startswith("\\boxed{") else f"\\boxed{{{answer}}}"
    return parse(boxed, extraction_config=[ExprExtractionConfig(), boxes_first], parsing_timeout=None)


def read_text(text: str) -> list[Any]:
    """What math-verify finds in a text that leads to an answer; empty if nothing."""
    from math_verify import parse

    return parse(text, parsing_timeout=None)


def are_equal(expected: list[Any], found: list[Any], decimals: int = 6) -> bool:
    """Whether any of `found` equals any of `expected`; which is which matters for relations."""
    from math_verify import verify

    return bool(verify(expected, found, float_rounding=decimals, timeout_seconds=None))
