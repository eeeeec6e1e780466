"""The row formats that users have: one pure function for each, in a table, recognised by its keys.

Every one gives the same thing: the prompt (text, or messages up to the last answer), that answer where the
row has one, and the ground truth. Keys that a format does not read travel to the scorers as metadata.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Message = dict[str, Any]
Row = Mapping[str, Any]

ROLES = {"human": "user", "gpt": "assistant", "function_call": "assistant", "observation": "tool"}
"""Role names of ShareGPT."""


class Example(NamedTuple):
    prompt: str | list[Message]
    """Text, or a conversation that the assistant is to go on with."""
    answer: Message | None
    """The assistant's message that follows in the data."""
    ground_truth: Any


class Format(NamedTuple):
    read: Callable[[Row], Example]
    needs: tuple[str, ...]
    """Keys by which a row of this format is recognised."""
    uses: tuple[str, ...] = ()
    """Further keys that it reads."""


def recognise(row: Row) -> str | None:
    """The first format whose keys the row has."""
    for name, format in FORMATS.items():
        if all(row.get(key) is not None for key in format.needs):
            return name
    return None


def conversation(items: Any, key: str = "messages") -> tuple[list[Message], Message | None]:
    """Messages with `role` or `from`, `content` or `value`: those of the prompt, and the answer at their end.

    Conversations with `from` come from formats that ask for user and assistant in turn, so that is checked.

    Raises:
    ValueError: no list of messages, a message without role or text, roles out of turn, or only an answer.
    """
    items = structure(items, key)
    if not isinstance(items, list) or not items:
        raise ValueError(f"{key!r} must be a list of at least one message")
    messages = [_message(item) for item in items]
    if isinstance(items[0], dict) and "from" in items[0]:
        _check_turns(messages, key)
    answer = messages.pop() if messages[-1]["role"] == "assistant" else None
    if not any(message["role"] != "system" for message in messages):
        raise ValueError(f"{key!r} has no user message to answer")
    return messages, answer


def structure(value: Any, key: str) -> Any:
    """A list or object as it is; text, as CSV files have it, as the JSON that it must be."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"{key!r} is text that is no JSON list or object: {error}") from error


def _message(item: Any) -> Message:
    if not isinstance(item, dict):
        raise ValueError(f"each message must be an object with 'role' and 'content', not {item!r:.80}")
    given = item.get("role") or item.get("from")
    content = item["value"] if item.get("content") is None and "value" in item else item.get("content")
    if given == "function_call":
        call = structure(content, "function_call")
        if not isinstance(call, dict) or "name" not in call:
            raise ValueError(f"a function_call must be an object with 'name', not {call!r:.80}")
        return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}
    if not isinstance(given, str) or not (isinstance(content, str) or item.get("tool_calls")):
        raise ValueError(f"each message needs a 'role' and a text 'content'; this one is {item!r:.80}")
    more = {key: value for key, value in item.items() if value is not None and key not in {"from", "value"}}
    return {**more, "role": ROLES.get(given, given), "content": content or ""}


def _check_turns(messages: list[Message], key: str) -> None:
    """User (or a tool's observation) and assistant in turn, after one system message at most."""
    turns = messages[1:] if messages[0]["role"] == "system" else messages
    for number, message in enumerate(turns):
        expected = ("assistant",) if number % 2 else ("user", "tool")
        if message["role"] not in expected:
            raise ValueError(
                f"{key!r} must alternate between user and assistant, beginning with the user: "
                f"message {number + 1} is of {message['role']!r}"
            )


def _messages(row: Row) -> Example:
    messages, answer = conversation(row["messages"])
    return Example(messages, answer, row.get("answer"))


def _colossalchat(row: Row) -> Example:
    messages, answer = conversation(row["messages"])
    _check_turns(messages, "messages")
    return Example(messages, answer, row["gt_answer"])


def _sharegpt(row: Row) -> Example:
    messages, answer = conversation(row["conversations"], "conversations")
    _check_turns(messages, "conversations")
    return Example(messages, answer, None)


def _alpaca(row: Row) -> Example:
    """`history` holds earlier (instruction, output) pairs; `input` follows the instruction on a new line."""
    messages = []
    for pair in structure(row.get("history") or [], "history"):
        if not isinstance(pair, list) or len(pair) != 2:
            raise ValueError(f"'history' must hold [instruction, output] pairs, not {pair!r:.80}")
        messages += [_user(pair[0], "history"), {"role": "assistant", "content": str(pair[1])}]
    parts = [row[key] for key in ("instruction", "input") if row.get(key)]
    messages.append(_user("\n".join(map(str, parts)), "instruction"))
    return Example(messages, _assistant(row.get("output")), None)


def _verl(row: Row) -> Example:
    """The columns of verl's RLHFDataset: `prompt` is a list of messages, the truth lies in `reward_model`."""
    reward_model = structure(row["reward_model"], "reward_model")
    if not isinstance(reward_model, dict):
        raise ValueError(f"'reward_model' must be an object with 'ground_truth', not {reward_model!r:.80}")
    return Example(*_text_or_conversation(row, "prompt"), reward_model.get("ground_truth"))


def _question(row: Row) -> Example:
    """GSM8K as published: the answer is the solution, with the number after `####`."""
    answer = row.get("answer")
    return Example([_user(row["question"], "question")], _assistant(answer), answer)


def _prompt(row: Row) -> Example:
    return Example(*_text_or_conversation(row, "prompt"), row.get("answer"))


def _openrlhf(row: Row) -> Example:
    return Example(*_text_or_conversation(row, "input"), row.get("label"))


def _text_or_conversation(row: Row, key: str) -> tuple[str | list[Message], Message | None]:
    if isinstance(row[key], str):
        return row[key], None
    return conversation(row[key], key)


def _user(text: Any, key: str) -> Message:
    if not isinstance(text, str) or not text:
        raise ValueError(f"{key!r} must be text, not {text!r:.80}")
    return {"role": "user", "content": text}


def _assistant(text: Any) -> Message | None:
    return {"role": "assistant", "content": text} if isinstance(text, str) and text else None


COMMON = ("ground_truth", "system", "tools")
"""Keys that mean the same in every format."""
FORMATS = {
    "sharegpt": Format(_sharegpt, ("conversations",)),
    "colossalchat": Format(_colossalchat, ("messages", "gt_answer")),
    "messages": Format(_messages, ("messages",), ("answer",)),
    "verl": Format(_verl, ("prompt", "reward_model")),
    "alpaca": Format(_alpaca, ("instruction",), ("input", "output", "history")),
    "question": Format(_question, ("question",), ("answer",)),
    "prompt": Format(_prompt, ("prompt",), ("answer",)),
    "openrlhf": Format(_openrlhf, ("input",), ("label",)),
}
"""In the order in which they are tried on a row."""
