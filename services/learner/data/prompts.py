"""The prompt dataset: rows of a JSONL file, rendered, tokenised, filtered by length, in a seeded order.

Row formats: `messages` (role, content) or `question`, with `ground_truth` or `answer`: GSM8K as published and
the common chat form are both read as they are. Other keys of a row travel as metadata.
"""

import json
import random
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from jinja2 import TemplateError

from shared.experience import Int32Array, Prompt, Sampling, prompt_id


class Tokenizer(Protocol):
    """The part of a transformers tokenizer that is used here."""

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any: ...

    def encode(self, text: str, **kwargs: Any) -> list[int]: ...


class Row(NamedTuple):
    text: str
    """The rendered prompt."""
    token_ids: Int32Array
    ground_truth: str | None
    metadata: dict[str, Any]


class Dataset(NamedTuple):
    rows: list[Row]
    too_long: int
    """Rows left out because their prompt was over the length limit."""


def load_dataset(path: Path, tokenizer: Tokenizer, max_prompt_tokens: int) -> Dataset:
    """Read, render and tokenise all rows.

    Raises:
    ValueError: file missing, a broken row (with its line number), or no row within the length limit.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # not splitlines: JSON may hold U+2028
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"prompt file {path} cannot be read: {error}") from error
    rows, too_long, shortest = [], 0, None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = _render(json.loads(line), tokenizer)
        except (ValueError, TypeError, TemplateError) as error:
            raise ValueError(f"prompt file {path}, line {number}: {error}") from error
        if len(row.token_ids) <= max_prompt_tokens:
            rows.append(row)
        else:
            too_long += 1
            shortest = min(shortest or len(row.token_ids), len(row.token_ids))
    if not rows:
        why = f"the shortest prompt has {shortest} tokens" if too_long else "the file has no rows"
        raise ValueError(
            f"prompt file {path}: no prompt within learner.max_prompt_tokens={max_prompt_tokens}; {why}"
        )
    return Dataset(rows, too_long)


def _render(row: Any, tokenizer: Tokenizer) -> Row:
    if not isinstance(row, dict):
        raise ValueError(f"a row must be a JSON object, not {type(row).__name__}")
    row = dict(row)
    messages = row.pop("messages", None)
    if messages is None:
        if "question" not in row:
            raise ValueError(f"needs 'messages' or 'question'; it has {sorted(row)}")
        messages = [{"role": "user", "content": row.pop("question")}]
    _check_messages(messages)
    truth = row.pop("ground_truth", None)
    if truth is None:
        truth = row.pop("answer", None)
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = tokenizer.encode(text, add_special_tokens=False)
    return Row(text, Int32Array(ids), None if truth is None else str(truth), row)


def _check_messages(messages: Any) -> None:
    if not isinstance(messages, list) or not messages:
        raise ValueError("'messages' must be a list of at least one message")
    for message in messages:
        if (
            not isinstance(message, dict)
            or not isinstance(message.get("content"), str)
            or "role" not in message
        ):
            raise ValueError("each message needs a 'role' and a text 'content'")
    if messages[-1]["role"] == "assistant":
        raise ValueError("the last message is the assistant's; a prompt must end with the user's")


class PromptSource:
    """Prompts without end, each pass over the dataset in a new order that depends only on the seed.

    `position` counts the prompts taken so far; it is the whole state, so a resumed run goes on exactly there.
    """

    def __init__(self, run: str, rows: list[Row], seed: int, n: int, sampling: Sampling) -> None:
        self._run = run
        self._rows = rows
        self._seed = seed
        self._n = n
        self._sampling = sampling
        self._order: list[int] = []
        self._order_epoch = -1
        self.position = 0

    def take(self, issued_version: int) -> Prompt:
        """The next prompt, stamped with the policy version that is current now."""
        epoch, offset = divmod(self.position, len(self._rows))
        if epoch != self._order_epoch:
            self._order = list(range(len(self._rows)))
            random.Random(f"{self._seed}/{epoch}").shuffle(self._order)
            self._order_epoch = epoch
        self.position += 1
        index = self._order[offset]
        row = self._rows[index]
        return Prompt(
            id=prompt_id(self._run, "train", epoch, index),
            epoch=epoch,
            index=index,
            n=self._n,
            issued_version=issued_version,
            text=row.text,
            token_ids=row.token_ids,
            sampling=self._sampling.of_prompt("train", epoch, index),
            ground_truth=row.ground_truth,
            metadata=row.metadata,
        )
