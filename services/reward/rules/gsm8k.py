"""GSM8K's number as other trainers look for it: after `####`, last in the text, or in tags. 1 or 0."""

import re

from services.reward.math_answer import marked_number, same_text, tagged_answer
from services.reward.rules.colossalchat import TaggedConfig
from services.reward.rules.config import RuleConfig
from services.reward.rules.required import required_answer
from shared.scoring import ScoreItem

_NUMBER = re.compile(r"(?<!\d)-?(?:\d[\d,]*(?:\.\d+)?|(?<![\d.])\.\d+)")


def gsm8k_strict_reward_fn(item: ScoreItem, config: RuleConfig) -> float:
    """1 if the number after the response's last `#### ` is the ground truth's, commas aside, else 0.

    Raises:
    Unscorable: no ground truth.
    Source: verl, `verl/utils/reward_score/gsm8k.py`, method "strict", but on the whole response.
    """
    return _equal(marked_number(item.response), required_answer(item))


def gsm8k_last_number_reward_fn(item: ScoreItem, config: RuleConfig) -> float:
    """1 if the last number in the response is the ground truth's, commas aside, else 0.

    Raises:
    Unscorable: no ground truth.
    Source: open-instruct's GSM8K verifier and verl's method "flexible". As there, numbers are compared as
    texts (`18.0` is not `18`); a minus that follows a digit, as in `20-2`, is no sign, and `.5` is not `5`.
    """
    numbers = _NUMBER.findall(item.response)
    return _equal(numbers[-1] if numbers else None, required_answer(item))


def gsm8k_tag_reward_fn(item: ScoreItem, config: TaggedConfig) -> float:
    """1 if the text in the last answer tags is the ground truth's number, commas aside, else 0.

    What else the response holds, and whether its format is good, does not matter.

    Raises:
    Unscorable: no ground truth.
    """
    return _equal(tagged_answer(item.response, config.tags), required_answer(item))


def _equal(answer: str | None, expected: str) -> float:
    return float(answer is not None and same_text(answer.replace(",", ""), expected.replace(",", "")))
