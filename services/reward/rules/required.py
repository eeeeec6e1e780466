"""What a rule asks of an item beyond its response; an item without it is `invalid`, not worth 0."""

from services.reward.math_answer import final_answer
from services.reward.protocol import Unscorable
from shared.scoring import SERVICE_KEY, ScoreItem


def required_truth(item: ScoreItem) -> str:
    """The item's ground truth as it is.

    Raises:
    Unscorable: there is none, or only white space.
    """
    if item.ground_truth is None or not item.ground_truth.strip():
        raise Unscorable("needs a ground_truth, and the item has none")
    return item.ground_truth


def required_answer(item: ScoreItem) -> str:
    """What the item's ground truth asks for: of a whole GSM8K solution the number after `####`.

    Raises:
    Unscorable: there is none.
    """
    truth = required_truth(item)
    answer = final_answer(truth)
    if not answer.strip():
        raise Unscorable(f"needs a ground_truth, and there is no answer in {truth[-80:]!r}")
    return answer


def required_length(item: ScoreItem, unit: str) -> int:
    """The response's length in `characters`, or in `tokens` as the item's metadata tell it.

    Raises:
    Unscorable: the unit is tokens, and the metadata have no count. A rule gets text, and cannot count them.
    """
    if unit == "characters":
        return len(item.response)
    told = item.metadata.get(SERVICE_KEY)
    tokens = told.get("completion_tokens") if isinstance(told, dict) else None
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 0:
        raise Unscorable(
            f"needs metadata.{SERVICE_KEY}.completion_tokens, a number of tokens; found {tokens!r}"
        )
    return tokens
