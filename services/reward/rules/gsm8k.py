"""Rewards for grade-school mathematics: the answer is a number, in tags or after `####`."""

from services.reward.math_answer import (
    Tags,
    final_answer,
    has_structure,
    is_integer,
    marked_number,
    same_text,
    tagged_answer,
)
from services.reward.protocol import Unscorable
from services.reward.rules.config import RuleConfig
from shared.scoring import ScoreItem


class TaggedConfig(RuleConfig):
    tags: Tags = Tags()
    """The texts that frame thought and answer; without it, those of `[reward]`."""


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


def gsm8k_strict_reward_fn(item: ScoreItem, config: RuleConfig) -> float:
    """1 if the number after the response's last `#### ` is the ground truth's, commas aside, else 0.

    Raises:
    Unscorable: no ground truth.
    Source: verl, `verl/utils/reward_score/gsm8k.py`, method "strict", but on the whole response.
    """
    expected = required_answer(item)
    answer = marked_number(item.response)
    return float(answer is not None and same_text(answer, expected.replace(",", "")))


def required_answer(item: ScoreItem) -> str:
    """What the item's ground truth asks for.

    Raises:
    Unscorable: there is none.
    """
    if item.ground_truth is None:
        raise Unscorable("needs a ground_truth, and the item has none")
    expected = final_answer(item.ground_truth)
    if not expected.strip():
        raise Unscorable(f"needs a ground_truth, and there is no answer in {item.ground_truth[-80:]!r}")
    return expected
