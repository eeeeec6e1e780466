"""The conversation that a response ends, where an item carries one beside its prompt's text."""

import re
from typing import Any

from services.reward.protocol import Unscorable
from shared.scoring import ScoreItem

MESSAGES = "messages"
"""The key of an item's `metadata` that holds the prompt's messages: a list of `{"role", "content"}`.

The prompt's text on the stream is already in the policy's chat template; a model with another template needs
what it was made from.
"""

_PLACE = re.compile(r"\{(prompt|response|ground_truth)\}")


def prompt_messages(item: ScoreItem) -> list[dict[str, Any]] | None:
    """The messages before the response; None where the item carries none.

    Raises:
    Unscorable: they are not messages.
    """
    messages = item.metadata.get(MESSAGES)
    if messages is None:
        return None
    if not isinstance(messages, list) or not messages or not all(map(_is_message, messages)):
        raise Unscorable('needs metadata "messages" to be a list of {"role", "content"} with text in both')
    return messages


def conversation(item: ScoreItem) -> list[dict[str, Any]]:
    """The whole conversation, the response last; without messages the prompt's text is one user's turn.

    Raises:
    Unscorable: the messages are malformed.
    """
    prompt = prompt_messages(item) or [{"role": "user", "content": item.prompt}]
    return [*prompt, {"role": "assistant", "content": item.response}]


def fill(template: str, item: ScoreItem) -> str:
    """`template` with `{prompt}`, `{response}`, `{ground_truth}` replaced; nothing in them is read again."""
    texts = {"prompt": item.prompt, "response": item.response, "ground_truth": item.ground_truth or ""}
    return _PLACE.sub(lambda place: texts[place[1]], template)


def _is_message(message: Any) -> bool:
    return isinstance(message, dict) and all(isinstance(message.get(key), str) for key in ("role", "content"))
