"""The rewards of ColossalChat: 0 for a bad format, points for a good one, more for the right answer.

Both work on decoded text here. There they slice the token sequence before they decode it, and
`math_competition_reward_fn` takes one token more than `gsm8k_reward_fn`; with text there is no such slice.
"""

from typing import Literal

from pydantic import Field, model_validator

from services.reward.math_answer import (
    Tags,
    boxed_answer,
    has_structure,
    is_integer,
    same_text,
    tagged_answer,
    tags_are_counted,
)
from services.reward.rules.config import RuleConfig
from services.reward.rules.math_equal import are_equal, read_answer
from services.reward.rules.required import required_answer, required_length, required_truth
from shared.scoring import ScoreItem


class TaggedConfig(RuleConfig):
    tags: Tags = Tags()
    """The texts that frame thought and answer; without it, those of `[reward]`."""


class AccuracyConfig(TaggedConfig):
    """The length limits of `coati/distributed`. Without `max_new_tokens`, none."""

    max_new_tokens: int | None = Field(default=None, ge=1)
    """A response of as many tokens, or more, was cut off: it is worth 0 even if right."""
    soft_punishment_tokens: int | None = Field(default=None, ge=1)
    """The last so many tokens before the limit cost up to 10 points, in proportion."""

    @model_validator(mode="after")
    def _punishment_has_a_limit(self) -> "AccuracyConfig":
        if self.soft_punishment_tokens and self.soft_punishment_tokens > (self.max_new_tokens or 0):
            raise ValueError("soft_punishment_tokens needs a max_new_tokens that is not smaller")
        return self


class BoxedConfig(AccuracyConfig):
    format: Literal["boxed", "boxed_and_tags"] = "boxed"
    """What a good format is: a boxed answer, or one and every tag as often as it must occur."""


def gsm8k_reward_fn(item: ScoreItem, config: TaggedConfig) -> float:
    """0 for a bad format or an answer that is no integer, 1 for a wrong one, 10 for the right one.

    Right means equal text: `018` and `18.0` are not `18`. A ground truth may be a whole GSM8K solution.

    Raises:
    Unscorable: no ground truth.
    Source: ColossalChat, `coati/utils/reward_score/gsm8k.py`; here the configured tags also find the answer.
    """
    expected = required_answer(item)
    answer = tagged_answer(item.response, config.tags)
    if answer is None or not is_integer(answer) or not has_structure(item.response, config.tags):
        return 0.0
    return 10.0 if same_text(answer, expected) else 1.0


def math_competition_reward_fn(item: ScoreItem, config: TaggedConfig) -> float:
    """0 for a bad format, 1 for a wrong answer, 10 for the right one; answers are compared as texts.

    Raises:
    Unscorable: no ground truth (there: 0).
    Source: ColossalChat, `coati/utils/reward_score/competition.py`; here the configured tags also find the
    answer (there, other tags end in an AttributeError).
    """
    expected = required_truth(item)
    answer = tagged_answer(item.response, config.tags)
    if answer is None or not has_structure(item.response, config.tags):
        return 0.0
    return 10.0 if same_text(answer, expected) else 1.0


def math_reward_fn(item: ScoreItem, config: AccuracyConfig) -> float:
    """10 for the right answer in the right tags, 5 if it is no mathematics, else 0; less if very long.

    Raises:
    Unscorable: no ground truth; length limits without a count of tokens.
    Source: ColossalChat, `coati/distributed/reward/reward_fn.py`, first of the three numbers.
    """
    expected = required_truth(item)
    answer = tagged_answer(item.response, config.tags)
    return _accuracy(item, answer, expected, has_structure(item.response, config.tags), config)


def boxed_math_reward_fn(item: ScoreItem, config: BoxedConfig) -> float:
    """10 for the right answer in the last box, 5 if it is no mathematics, else 0; less if very long.

    Raises:
    Unscorable: no ground truth; length limits without a count of tokens.
    Source: ColossalChat, `coati/distributed/reward/reward_fn.py`, `boxed_math_reward_fn`.
    """
    expected = required_truth(item)
    answer = boxed_answer(item.response)
    good = answer is not None and (config.format == "boxed" or tags_are_counted(item.response, config.tags))
    return _accuracy(item, answer, expected, good, config)


def _accuracy(
    item: ScoreItem, answer: str | None, expected: str, good_format: bool, config: AccuracyConfig
) -> float:
    punishment = 0.0
    if config.max_new_tokens is not None:
        tokens = required_length(item, "tokens")
        if tokens >= config.max_new_tokens:
            return 0.0
        cache = config.soft_punishment_tokens
        if cache and answer is not None and tokens > config.max_new_tokens - cache:
            punishment = (config.max_new_tokens - cache - tokens) / cache * 10.0
    return punishment + (_points(answer, expected) if good_format and answer is not None else 0.0)


def _points(answer: str, expected: str) -> float:
    """Equal as mathematics 10; else equal as texts 10, or 5 where only the answer is no mathematics."""
    truth = read_answer(expected)
    found = read_answer(answer) if truth and answer else []
    if found and are_equal(truth, found):
        return 10.0
    if _bare(answer) == _bare(expected):
        return 5.0 if truth and answer and not found else 10.0
    return 0.0


def _bare(text: str) -> str:
    return text.strip().translate({ord(character): None for character in " {},"})
