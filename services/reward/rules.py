"""Rule functions: text in, one number out. To add one, write it and enter it in `RULES`."""

import difflib
from collections.abc import Callable

from services.reward.math_answer import (
    Tags,
    final_answer,
    has_structure,
    is_integer,
    marked_number,
    same_text,
    tagged_answer,
)


class Unscorable(ValueError):
    """The item cannot be scored as sent, however often it is tried: it is `invalid`, not worth 0."""


Rule = Callable[[str, str | None, Tags], float]
"""Response (decoded without special tokens), ground truth and configured tags to a reward."""


def gsm8k_reward_fn(response: str, ground_truth: str | None, tags: Tags) -> float:
    """0 for a bad format or an answer that is no integer, 1 for a wrong one, 10 for the right one.

    Right means equal text: `018` and `18.0` are not `18`. A ground truth may be a whole GSM8K solution.

    Raises:
    Unscorable: no ground truth.
    Source: ColossalChat, `coati/utils/reward_score/gsm8k.py`; here the configured tags also find the answer.
    """
    expected = _expected(ground_truth)
    answer = tagged_answer(response, tags)
    if answer is None or not is_integer(answer) or not has_structure(response, tags):
        return 0.0
    return 10.0 if same_text(answer, expected) else 1.0


def gsm8k_strict_reward_fn(response: str, ground_truth: str | None, tags: Tags) -> float:
    """1 if the number after the response's last `#### ` is the ground truth's, commas aside, else 0.

    Raises:
    Unscorable: no ground truth.
    Source: verl, `verl/utils/reward_score/gsm8k.py`, method "strict", but on the whole response.
    """
    expected = _expected(ground_truth)
    answer = marked_number(response)
    return float(answer is not None and same_text(answer, expected.replace(",", "")))


RULES: dict[str, Rule] = {
    "gsm8k_reward_fn": gsm8k_reward_fn,
    "gsm8k_strict_reward_fn": gsm8k_strict_reward_fn,
}


def find_rule(name: str) -> Rule:
    """Raises:
    ValueError: no rule has this name; the message suggests one.
    """
    if name in RULES:
        return RULES[name]
    close = difflib.get_close_matches(name, RULES, n=1, cutoff=0.6)
    hint = f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(sorted(RULES))}."
    raise ValueError(f"unknown scorer {name!r}. {hint}")


def _expected(ground_truth: str | None) -> str:
    if ground_truth is None:
        raise Unscorable("needs a ground_truth, and the item has none")
    expected = final_answer(ground_truth)
    if not expected.strip():
        raise Unscorable(f"needs a ground_truth, and there is no answer in {ground_truth[-80:]!r}")
    return expected
