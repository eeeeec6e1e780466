"""Where the answer stands in a text: tags, a box, after `Answer:` or `####`. Pure, linear-time functions."""

import re
from typing import Self

from pydantic import Field, model_validator

from shared.config import Table

_BRACE = re.compile("[{}]")
_ANSWER_LINE = re.compile(r"answer[^\S\n]*:([^\n]*)", re.IGNORECASE)
_FRAME = " \t\r*$"
_MARKED_NUMBER = re.compile(r"#### (-?[0-9.,]+)")


class Tag(Table):
    text: str = Field(min_length=1)
    num_occur: int = Field(default=1, ge=0)
    """How often the response must hold the text: 0 where the prompt has it already."""


class Tags(Table):
    """The four texts that frame a well-formed response, in their order."""

    think_start: Tag = Tag(text="<think>")
    think_end: Tag = Tag(text="</think>")
    answer_start: Tag = Tag(text="<answer>")
    answer_end: Tag = Tag(text="</answer>")

    @property
    def in_order(self) -> tuple[Tag, Tag, Tag, Tag]:
        return self.think_start, self.think_end, self.answer_start, self.answer_end

    @model_validator(mode="after")
    def _answer_can_be_found(self) -> Self:
        if not (self.answer_start.num_occur and self.answer_end.num_occur):
            raise ValueError(
                "num_occur of answer_start and answer_end must be 1 or more, or no answer is ever right"
            )
        return self


def has_structure(response: str, tags: Tags) -> bool:
    """Whether every tag occurs as often as it must, the first ones in order, and the last ends the text.

    Source: ColossalChat, `coati/utils/reward_score/utils.py`, `validate_response_structure`.
    """
    if not tags_are_counted(response, tags):
        return False
    positions = [response.find(tag.text) for tag in tags.in_order]
    return positions == sorted(positions) and response.endswith(tags.answer_end.text)


def tags_are_counted(response: str, tags: Tags) -> bool:
    """Whether every tag occurs as often as it must."""
    return all(response.count(tag.text) == tag.num_occur for tag in tags.in_order)


def tagged_answer(response: str, tags: Tags) -> str | None:
    """The text of the last pair of answer tags, stripped; None without a pair.

    The same pairs as those of the regular expression `start(.*?)end`, which takes quadratic time on a text
    of many starts and no end.
    """
    start, end = tags.answer_start.text, tags.answer_end.text
    answer, position = None, 0
    while (opened := response.find(start, position)) >= 0:
        inside = opened + len(start)
        closed = response.find(end, inside)
        if closed < 0:
            break
        answer, position = response[inside:closed].strip(), closed + len(end)
    return answer


def boxed_answer(response: str) -> str | None:
    r"""What stands in the last `\boxed{...}`, with balanced braces; None without one.

    A last box that is never closed is None, even if an earlier one is closed.
    Source: ColossalChat, `coati/distributed/reward/reward_utils.py`, `extract_boxed_solution`.
    """
    start = response.rfind(r"\boxed{")
    if start < 0:
        return None
    start = response.index("{", start)
    depth = 0
    for brace in _BRACE.finditer(response, start):
        depth += 1 if brace.group() == "{" else -1
        if not depth:
            return response[start + 1 : brace.start()]
    return None


def answer_line(response: str) -> str | None:
    """What follows the last `Answer:` on its line, without the markup around it; None without any.

    Source: DAPO, as verl's `math_dapo` reads it.
    """
    lines = _ANSWER_LINE.findall(response)
    return lines[-1].rstrip(f"{_FRAME}.").lstrip(_FRAME) or None if lines else None


def marked_number(response: str) -> str | None:
    """The number after the last `#### ` that has one, without its thousands commas; None without any.

    Source: the convention of the GSM8K data set, read as verl's strict method reads it.
    """
    numbers = _MARKED_NUMBER.findall(response)
    return numbers[-1].replace(",", "") if numbers else None


def final_answer(ground_truth: str) -> str:
    """What a ground truth asks for: of a whole GSM8K solution the number after `####`, else all of it."""
    _, marker, number = ground_truth.rpartition("####")
    return number.strip().replace(",", "") if marker else ground_truth


def is_integer(answer: str) -> bool:
    """Whether Python's `int` reads it: also `+18`, `1_000` and digits of other scripts."""
    try:
        int(answer)
    except ValueError:
        return False
    return True


def same_text(left: str, right: str) -> bool:
    """Equality of texts but for spaces and case; numbers are not evaluated."""
    return left.strip().replace(" ", "").lower() == right.strip().replace(" ", "").lower()
