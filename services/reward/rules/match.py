"""Rewards for an answer's text: equal, similar, or found by a pattern."""

from typing import Annotated, Literal

import re2
from pydantic import AfterValidator, Field
from rapidfuzz import fuzz

from services.reward.math_answer import Tags, answer_line, boxed_answer, tagged_answer
from services.reward.rules.config import RuleConfig
from services.reward.rules.required import required_truth
from shared.scoring import ScoreItem


def _check_pattern(pattern: str) -> str:
    try:
        re2.compile(pattern)
    except re2.error as error:
        raise ValueError(f"RE2 cannot use the pattern {pattern!r}: {error}") from error
    return pattern


class AnswerConfig(RuleConfig):
    answer_in: Literal["response", "box", "tags", "last_line", "answer_line"] = "response"
    """Where the answer stands. Without one there, the item is worth 0."""
    tags: Tags = Tags()
    """The texts that frame the answer, where it stands in tags; without it, those of `[reward]`."""


class MatchConfig(AnswerConfig):
    ignore_case: bool = True
    ignore_spaces: bool = False
    """All white space; at the ends it is always ignored."""


class PatternConfig(AnswerConfig):
    pattern: Annotated[str, AfterValidator(_check_pattern)]
    """In RE2's syntax: no look-around, no references back, and so never more than linear time."""
    whole: bool = False
    """Whether the pattern must match the whole answer, instead of some part of it."""
    found: float = Field(default=1.0, allow_inf_nan=False)
    missing: float = Field(default=0.0, allow_inf_nan=False)


def exact_match(item: ScoreItem, config: MatchConfig) -> float:
    """1 if the answer's text is the ground truth's, else 0.

    Raises:
    Unscorable: no ground truth.
    """
    expected, answer = required_truth(item), find_answer(item.response, config)
    return float(answer is not None and _normal(answer, config) == _normal(expected, config))


def fuzzy_match(item: ScoreItem, config: MatchConfig) -> float:
    """Similarity of the answer's text to the ground truth's, from 0 (nothing in common) to 1 (equal).

    2 M / T with M characters in the longest common subsequence and T in both texts.

    Raises:
    Unscorable: no ground truth.
    Source: RapidFuzz, `fuzz.ratio`.
    """
    expected, answer = required_truth(item), find_answer(item.response, config)
    if answer is None:
        return 0.0
    return fuzz.ratio(_normal(answer, config), _normal(expected, config)) / 100


def regex(item: ScoreItem, config: PatternConfig) -> float:
    """`found` if the answer's text matches `pattern`, else `missing`."""
    answer = find_answer(item.response, config)
    match = re2.fullmatch if config.whole else re2.search
    # RE2 works on UTF-8, in which half a surrogate pair cannot be written.
    text = None if answer is None else answer.encode(errors="replace").decode()
    return config.found if text is not None and match(config.pattern, text) else config.missing


def find_answer(response: str, config: AnswerConfig) -> str | None:
    """The text that `config` wants judged; None if the response has none."""
    match config.answer_in:
        case "box":
            return boxed_answer(response)
        case "tags":
            return tagged_answer(response, config.tags)
        case "answer_line":
            return answer_line(response)
        case "last_line":
            lines = response.strip().splitlines()
            return lines[-1] if lines else None
        case "response":
            return response


def _normal(text: str, config: MatchConfig) -> str:
    if config.ignore_case:
        text = text.casefold()
    return "".join(text.split()) if config.ignore_spaces else text.strip()
