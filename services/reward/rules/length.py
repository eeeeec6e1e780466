"""Rewards for a response's length and against repetition.

Rules get text and no tokenizer. Lengths in tokens come from `metadata.rollstream.completion_tokens`, which
the stream worker fills in and REST clients may send.
"""

from typing import Literal, Self

from pydantic import Field, model_validator

from services.reward.rules.config import RuleConfig
from services.reward.rules.required import required_length
from shared.scoring import ScoreItem


class LengthConfig(RuleConfig):
    unit: Literal["tokens", "characters"] = "tokens"
    shortest: int = Field(default=0, ge=0)
    """Below it the reward falls to 0, in proportion to the length."""
    longest: int = Field(ge=1)
    """Above it the reward falls to 0 at twice the length, in proportion."""

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.shortest > self.longest:
            raise ValueError("shortest must not be more than longest")
        return self


class OverlongConfig(RuleConfig):
    unit: Literal["tokens", "characters"] = "tokens"
    max_length: int = Field(ge=1)
    """L_max: a longer response costs 1."""
    buffer: int = Field(ge=1)
    """L_cache: over so many before `max_length` the penalty grows from 0 to 1."""

    @model_validator(mode="after")
    def _buffer_fits(self) -> Self:
        if self.buffer > self.max_length:
            raise ValueError("buffer must not be more than max_length")
        return self


class RepetitionConfig(RuleConfig):
    ngram: int = Field(default=3, ge=1, le=100)
    """Words in a row that are compared."""
    max_penalty: float = Field(default=-1.0, le=0, allow_inf_nan=False)
    """What a response that says one thing over and over tends to."""


def length_reward_fn(item: ScoreItem, config: LengthConfig) -> float:
    """1 for a length from `shortest` to `longest`, less outside, 0 for an empty one and at twice `longest`.

    Raises:
    Unscorable: the unit is tokens, and the item does not tell their number.
    """
    length = required_length(item, config.unit)
    if length < config.shortest:
        return length / config.shortest
    return 1.0 if length <= config.longest else max(0.0, 2.0 - length / config.longest)


def overlong_penalty_fn(item: ScoreItem, config: OverlongConfig) -> float:
    """0 up to `max_length - buffer`, then down in a line to -1 at `max_length`, and -1 beyond.

    Raises:
    Unscorable: the unit is tokens, and the item does not tell their number.
    Source: DAPO (arXiv 2503.14476), equation 13, "soft overlong punishment".
    """
    length = required_length(item, config.unit)
    expected = config.max_length - config.buffer
    if length <= expected:
        return 0.0
    return (expected - length) / config.buffer if length <= config.max_length else -1.0


def repetition_penalty_fn(item: ScoreItem, config: RepetitionConfig) -> float:
    """`max_penalty` times the share of n-grams that repeat an earlier one.

    (1 - distinct n-grams / all n-grams) max_penalty, over lower-case words between white
    space; 0 with fewer words than one n-gram.

    Source: open-r1, `get_repetition_penalty_reward`, after arXiv 2502.03373, appendix.
    """
    words = item.response.lower().split()
    total = len(words) - config.ngram + 1
    if total < 1:
        return 0.0
    distinct = len({tuple(words[start : start + config.ngram]) for start in range(total)})
    return (1 - distinct / total) * config.max_penalty
