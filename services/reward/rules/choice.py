"""Reward for the right letter of a multiple-choice question."""

import re
from typing import Literal

from pydantic import Field

from services.reward.math_answer import Tags, boxed_answer, tagged_answer
from services.reward.protocol import Unscorable
from services.reward.rules.config import RuleConfig
from services.reward.rules.required import required_truth
from shared.scoring import ScoreItem

_ANSWER_LINE = re.compile(r"answer\s?(?:is)?\s?:\s?([^\n]{0,80})", re.IGNORECASE)
_TEX_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\s?\{([^{}]{0,80})\}")
_LONE_CAPITAL = re.compile(r"(?<![A-Za-z0-9'’])[A-Z](?![A-Za-z0-9'’])")
_FRAME = " \t\r\n()[]{}*_$.:,\"'"


class ChoiceConfig(RuleConfig):
    choices: str = Field(default="ABCD", pattern=r"^[A-Z]{2,26}$")
    """The letters to choose from."""
    answer_in: Literal["anywhere", "box", "tags", "answer_line"] = "anywhere"
    """`answer_line`: after the last `Answer:`. `anywhere` tries box, tags and that line, and at the end takes
    the last letter that stands by itself."""
    tags: Tags = Tags()
    """The texts that frame the answer, where it stands in tags; without it, those of `[reward]`."""


def multiple_choice(item: ScoreItem, config: ChoiceConfig) -> float:
    """1 if the letter chosen is the ground truth's, else 0.

    The ground truth is a letter, or a text that begins with one, such as `B` or `(B) blue`.

    Raises:
    Unscorable: no ground truth, or it begins with none of the letters.
    Source: NeMo-Gym's multiple-choice modes (boxed, `Answer:`) and slime's GPQA (last lone capital letter).
    """
    truth = required_truth(item)
    expected = _letter(truth, config.choices)
    if expected is None:
        raise Unscorable(f"needs a ground_truth that begins with one of {config.choices}, not {truth[:80]!r}")
    return float(_chosen(item.response, config) == expected)


def _chosen(response: str, config: ChoiceConfig) -> str | None:
    lines = _ANSWER_LINE.findall(response)
    places = {
        "box": boxed_answer(response),
        "tags": tagged_answer(response, config.tags),
        "answer_line": lines[-1] if lines else None,
    }
    if config.answer_in != "anywhere":
        return _letter(places[config.answer_in], config.choices)
    for text in places.values():
        if letter := _letter(text, config.choices):
            return letter
    alone = [letter for letter in _LONE_CAPITAL.findall(response) if letter in config.choices]
    return alone[-1] if alone else None


def _letter(text: str | None, choices: str) -> str | None:
    """The choice that `text` begins with, its brackets and markup aside: `(b)`, `**B.**`, `B) blue`."""
    if text is None:
        return None
    bare = _TEX_TEXT.sub(r"\1", text[:200]).strip(_FRAME)
    letter, rest = bare[:1].upper(), bare[1:2]
    return letter if letter and letter in choices and not rest.isalnum() else None
