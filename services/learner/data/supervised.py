"""Rows with answers for the ptx loss: what the policy is taught by example beside PPO."""

import logging
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from jinja2 import TemplateError

from services.learner.config.data import DatasetConfig
from services.learner.data import dataset
from services.learner.data.dataset import NOTHING_MORE, TemplateArguments, format_of, parse, render
from services.learner.data.formats import Message
from services.learner.data.prompts import shuffled
from services.learner.data.sources import read_rows
from shared.experience import Int32Array

log = logging.getLogger("rollstream.data")


class Tokenizer(dataset.Tokenizer, Protocol):
    @property
    def eos_token_id(self) -> int | None: ...


class PtxRow(NamedTuple):
    token_ids: Int32Array
    """[S]"""
    loss_mask: list[bool]
    """True on the tokens that are taught: the assistant's, or all of a plain text. [S]"""


def load_ptx(
    config: DatasetConfig,
    tokenizer: Tokenizer,
    max_tokens: int,
    system_message: str | None = None,
    arguments: TemplateArguments = NOTHING_MORE,
) -> list[PtxRow]:
    """Conversations with answers, in any row format that has them, or rows with a plain `text`.

    The chat template is told the `arguments`, as it is for prompts. Rows longer than `max_tokens` are left
    out, and their number is logged.

    Raises:
    ValueError: a source that cannot be read, a row without an answer (with its line), or no row short enough.
    """
    rows = []
    for where, row in read_rows(config):
        try:
            rows.append(_tokens(row, config, tokenizer, system_message, arguments))
        except (ValueError, TypeError, TemplateError) as error:
            raise ValueError(f"{config.place}, {where}: {error}") from error
    short = [row for row in rows if len(row.token_ids) <= max_tokens]
    if not short:
        raise ValueError(f"{config.place}: none of its {len(rows)} rows is within {max_tokens} tokens")
    log.info("%s: %d rows, %d left out as too long", config.name, len(short), len(rows) - len(short))
    return short


def sample(count: int, size: int, seed: int, step: int) -> list[int]:
    """Which of `count` rows step `step` takes: the rows in passes without end, each in an order of its own.

    A pure function, so that every rank and a resumed run agree without any state.
    """
    return [
        _pass(count, seed, position // count)[position % count]
        for position in range(step * size, (step + 1) * size)
    ]


@lru_cache(maxsize=4)
def _pass(count: int, seed: int, number: int) -> list[int]:
    return shuffled(count, f"{seed}/ptx/{number}")


def _tokens(
    row: Any,
    config: DatasetConfig,
    tokenizer: Tokenizer,
    system_message: str | None,
    arguments: TemplateArguments,
) -> PtxRow:
    if isinstance(row, dict) and isinstance(row.get("text"), str) and format_of(row, config) is None:
        return _plain(row["text"], tokenizer)
    parsed = parse(row, config, system_message)
    if not parsed.answer:
        raise ValueError("it has no answer of the assistant to learn")
    if isinstance(parsed.prompt, str):
        prompt = tokenizer.encode(parsed.prompt)
        answer = _ended(tokenizer.encode(parsed.answer["content"], add_special_tokens=False), tokenizer)
        return PtxRow(Int32Array(prompt + answer), [False] * len(prompt) + [True] * len(answer))
    return _conversation([*parsed.prompt, parsed.answer], parsed.tools, tokenizer, arguments)


def _plain(text: str, tokenizer: Tokenizer) -> PtxRow:
    ids = _ended(tokenizer.encode(text), tokenizer)
    return PtxRow(Int32Array(ids), [True] * len(ids))


def _ended(ids: list[int], tokenizer: Tokenizer) -> list[int]:
    end = tokenizer.eos_token_id
    return ids if end is None or ids[-1:] == [end] else [*ids, end]


def _conversation(
    messages: list[Message], tools: list[Any] | None, tokenizer: Tokenizer, arguments: TemplateArguments
) -> PtxRow:
    """The rendered conversation, taught where the assistant speaks.

    What an assistant message adds to the rendering of those before it is what the policy would have to say.
    Each such part is tokenised by itself, as completions are when they are sampled. A template may render an
    earlier turn otherwise once later ones follow (Qwen3 drops its thoughts); such a turn is context only.
    """
    whole = render(messages, tokenizer, tools, arguments, generation_prompt=False)
    ids: list[int] = []
    mask: list[bool] = []

    def add(text: str, taught: bool) -> None:
        new = tokenizer.encode(text, add_special_tokens=False)
        ids.extend(new)
        mask.extend([taught] * len(new))

    done = 0
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = render(messages[:number], tokenizer, tools, arguments)
        after = render(messages[: number + 1], tokenizer, tools, arguments, generation_prompt=False)
        if after.startswith(before) and whole.startswith(after):
            add(whole[done : len(before)], taught=False)
            add(whole[len(before) : len(after)], taught=True)
            done = len(after)
        elif message is messages[-1]:
            raise ValueError("the chat template does not render the last answer as going on from its prompt")
    return PtxRow(Int32Array(ids), mask)
