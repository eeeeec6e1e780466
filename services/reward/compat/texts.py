"""From what trainers send (decoded tokens, chat messages, labels of any type) to the texts of an item."""

import json
from collections.abc import Sequence
from typing import Any

from services.reward.conversation import MESSAGES
from services.reward.problems import refusal
from shared.scoring import ScoreItem

CHANCE = 16
"""Fewer characters that a prompt's end and a text's beginning share may be chance."""
OVERLAP = 1 << 18
"""More characters that they share are not looked for; the search takes some 0.2 s for this many."""


def ground_truth(label: Any, position: int | None = None, field: str = "labels") -> str | None:
    """A label as text: itself, or as JSON if it is a number, a list or an object.

    Raises:
    HTTPException: 422 for a number of more digits than Python writes out.
    """
    if label is None or isinstance(label, str):
        return label
    try:
        return json.dumps(label, ensure_ascii=False)
    except ValueError as error:
        raise refusal(422, str(error), position, field) from error


def without_end(text: str, end_tokens: Sequence[str]) -> str:
    """`text` without the end-of-turn and padding tokens that a decoder left behind it."""
    end, found = len(text), True
    while found:
        spaceless = end
        while spaceless and text[spaceless - 1].isspace():
            spaceless -= 1
        found = False
        for token in end_tokens:
            if token and text.endswith(token, 0, spaceless):
                end, found = spaceless - len(token), True
                break
    return text[:end]


def after_prompt(query: str, prompt: str) -> str | None:
    """What `query` (prompt and response, decoded) holds behind `prompt`; None if the prompt is not in it.

    Before the prompt there may be what a tokenizer adds (`<s>`), and of a prompt that was cut at its left to
    fit, only the end is there.
    """
    found = query.find(prompt)
    if found >= 0:
        return query[found + len(prompt) :]
    kept = _overlap(prompt[-OVERLAP:], query[:OVERLAP])
    return query[kept:] if kept >= CHANCE else None


def prompt_item(
    prompt: str | Sequence[dict[str, Any]], response: str, label: str | None, field: str
) -> ScoreItem:
    """An item from a prompt that is text or a list of messages.

    Raises:
    HTTPException: 422 for messages without role or text.
    """
    if isinstance(prompt, str):
        return ScoreItem(prompt=prompt, response=response, ground_truth=label)
    messages = [
        {"role": message.get("role", "user"), "content": message_text(message, field)} for message in prompt
    ]
    text = "\n\n".join(message["content"] for message in messages)
    metadata = {MESSAGES: messages} if messages else {}
    return ScoreItem(prompt=text, response=response, ground_truth=label, metadata=metadata)


def message_text(message: dict[str, Any], field: str) -> str:
    """The text of a chat message, whose content is a text or a list of parts with `text`.

    Raises:
    HTTPException: 422 if it has neither.
    """
    content = message.get("content")
    if isinstance(content, str):
        return content
    if content is None:
        return ""  # a message of tool calls alone
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise refusal(422, "only text can be scored: content must be a text or parts with text", field=field)
    return "".join(str(text) for text in texts)


def _overlap(left: str, right: str) -> int:
    """Length of the longest end of `left` that `right` begins with (Knuth-Morris-Pratt, linear time)."""
    failure = [0] * len(right)
    matched = 0
    for position in range(1, len(right)):
        while matched and right[position] != right[matched]:
            matched = failure[matched - 1]
        matched += right[position] == right[matched]
        failure[position] = matched
    matched = 0
    for character in left[-len(right) :] if right else "":
        while matched and (matched == len(right) or character != right[matched]):
            matched = failure[matched - 1]
        matched += character == right[matched]
    return matched
