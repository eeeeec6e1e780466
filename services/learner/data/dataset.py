"""Datasets of prompts: rows read, rendered by the chat template, tokenised, filtered by length."""

import difflib
import json
import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from jinja2 import TemplateError

from services.learner.config.data import Columns, DataConfig, DatasetConfig
from services.learner.data.formats import COMMON, FORMATS, Message, recognise, structure
from services.learner.data.prompts import Dataset, Row
from services.learner.data.sources import read_rows
from shared.experience import Int32Array

log = logging.getLogger("rollstream.data")


TemplateArguments = Mapping[str, Any]
NOTHING_MORE: TemplateArguments = MappingProxyType({})


class Tokenizer(Protocol):
    """The part of a transformers tokenizer that is used here."""

    @property
    def chat_template(self) -> Any: ...

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any: ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...


class Parsed(NamedTuple):
    """A row whose format no longer matters."""

    prompt: str | list[Message]
    """Text that is used as it is, or a conversation for the chat template."""
    answer: Message | None
    tools: list[Any] | None
    ground_truth: str | None
    metadata: dict[str, Any]


def load_datasets(
    config: DataConfig, tokenizer: Tokenizer, system_message: str | None
) -> tuple[list[Dataset], list[Dataset]]:
    """Training and held-out datasets, in the order of the config."""

    def load(part: DatasetConfig) -> Dataset:
        dataset = load_dataset(
            part, tokenizer, config.max_prompt_tokens, system_message, config.chat_template_arguments
        )
        log.info("%s: %d prompts, %d left out as too long", part.name, len(dataset.rows), dataset.too_long)
        return dataset

    return [load(part) for part in config.prompts], [load(part) for part in config.heldout]


def load_dataset(
    config: DatasetConfig,
    tokenizer: Tokenizer,
    max_prompt_tokens: int,
    system_message: str | None = None,
    arguments: TemplateArguments = NOTHING_MORE,
) -> Dataset:
    """Read, render and tokenise all rows.

    Args:
        system_message: for conversations that have none of their own.
        arguments: what else the chat template is told.

    Raises:
    ValueError: a source that cannot be read, a broken row (with its line), or no row within the length limit.
    """
    rows, too_long, shortest = [], 0, None
    for where, row in read_rows(config):
        try:
            parsed = parse(row, config, system_message)
            text, ids = _tokens(parsed, tokenizer, arguments)
        except (ValueError, TypeError, TemplateError) as error:
            raise ValueError(f"{config.place}, {where}: {error}") from error
        if len(ids) <= max_prompt_tokens:
            metadata = {**parsed.metadata, "dataset": config.name}
            if not isinstance(parsed.prompt, str):  # for reward models, whose chat template may be another
                metadata["messages"] = parsed.prompt
            rows.append(Row(text, Int32Array(ids), parsed.ground_truth, metadata))
        else:
            too_long += 1
            shortest = min(shortest or len(ids), len(ids))
    if not rows:
        why = f"the shortest prompt has {shortest} tokens" if too_long else "there are no rows"
        raise ValueError(
            f"{config.place}: no prompt within learner.max_prompt_tokens={max_prompt_tokens}; {why}"
        )
    return Dataset(config.name, rows, too_long, config.weight)


def parse(row: Any, config: DatasetConfig, system_message: str | None = None) -> Parsed:
    """One row of any format as prompt, answer, ground truth and metadata.

    Raises:
    ValueError: what is wrong with the row.
    """
    if not isinstance(row, dict):
        raise ValueError(f"a row must be a JSON object, not {type(row).__name__}")
    row = _rename(row, config.columns)
    name = format_of(row, config)
    if name is None:
        known = "; ".join(f"{name}: {', '.join(format.needs)}" for name, format in FORMATS.items())
        raise ValueError(
            f"no known format has the keys {sorted(row)}. Name the columns, as in "
            f'columns = {{ prompt = "...", ground_truth = "..." }}; or use a known format ({known})'
        )
    format = FORMATS[name]
    missing = [key for key in format.needs if row.get(key) is None]
    if missing:
        raise ValueError(f"format {name!r} needs {missing}; the row has {sorted(row)}")
    system = row.get("system") or system_message
    if not isinstance(system, str | None):
        raise ValueError(f"'system' must be text, not {system!r:.80}")
    example = format.read(row)
    truth = row.get("ground_truth")
    if truth is None:
        truth = example.ground_truth
    if truth is None and config.answer_as_ground_truth and example.answer:
        truth = example.answer["content"]
    used = {*format.needs, *format.uses, *COMMON}
    return Parsed(
        prompt=_conversation(example.prompt, config.plain, system),
        answer=example.answer,
        tools=structure(row["tools"], "tools") if row.get("tools") else None,
        ground_truth=_text(truth),
        metadata=json.loads(json.dumps({k: v for k, v in row.items() if k not in used}, default=str)),
    )


def format_of(row: dict[str, Any], config: DatasetConfig) -> str | None:
    """The format that the config names, directly or by mapping a column; else the one that the keys tell."""
    if config.format or not (config.columns.messages or config.columns.prompt):
        return config.format or recognise(row)
    return "messages" if config.columns.messages else "prompt"


def _rename(row: dict[str, Any], columns: Columns) -> dict[str, Any]:
    """The row with the user's columns under the names that the formats know."""
    named = {field: column for field, column in columns.model_dump().items() if column is not None}
    for field, column in named.items():
        if column not in row:
            close = difflib.get_close_matches(column, row, n=1, cutoff=0.6)
            hint = f"did you mean {close[0]!r}?" if close else f"it has {sorted(row)}"
            raise ValueError(f"columns.{field} = {column!r}: the row has no such column; {hint}")
    rest = {key: value for key, value in row.items() if key not in named.values()}
    return rest | {field: row[column] for field, column in named.items()}


def _conversation(prompt: str | list[Message], plain: bool, system: str | None) -> str | list[Message]:
    """What is rendered: a conversation, with the system message unless it has its own; or plain text."""
    if plain:
        if not isinstance(prompt, str):
            if len(prompt) > 1:
                raise ValueError(f"plain = true, but the row is a conversation of {len(prompt)} messages")
            prompt = prompt[0]["content"]
        return str(prompt)
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    if system and prompt[0]["role"] != "system":
        return [{"role": "system", "content": system}, *prompt]
    return prompt


def _text(truth: Any) -> str | None:
    return json.dumps(truth) if isinstance(truth, list | dict) else None if truth is None else str(truth)


def _tokens(parsed: Parsed, tokenizer: Tokenizer, arguments: TemplateArguments) -> tuple[str, list[int]]:
    """The prompt as text and token ids. A chat template writes special tokens; plain text is given them."""
    if isinstance(parsed.prompt, str):
        text, ids = parsed.prompt, tokenizer.encode(parsed.prompt)
    else:
        text = render(parsed.prompt, tokenizer, parsed.tools, arguments)
        ids = tokenizer.encode(text, add_special_tokens=False)
    if not ids:
        raise ValueError("the prompt is empty; a completion needs at least one token to go on from")
    return text, ids


def render(
    messages: list[Message],
    tokenizer: Tokenizer,
    tools: list[Any] | None,
    arguments: TemplateArguments,
    generation_prompt: bool = True,
) -> str:
    """The conversation as the model reads it, up to where the assistant is to begin."""
    if not tokenizer.chat_template:
        raise ValueError(
            "the tokenizer has no chat template: set learner.chat_template, or plain = true for text prompts"
        )
    more = {**arguments, "tools": tools} if tools else arguments
    return str(
        tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=generation_prompt, **more
        )
    )
