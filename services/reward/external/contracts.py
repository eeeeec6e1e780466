"""The contracts of scoring servers: how a request is built from items, where the numbers stand in the reply.

A contract is one row of `CONTRACTS`. A reply of another shape, count or order is `Malformed` and gives no
score: nothing is guessed, padded or cut. A row without a finite number is the `error` of its own item only.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from services.reward.conversation import conversation, fill
from services.reward.external.config import ExternalConfig
from services.reward.protocol import Failure, Outcome, Steps
from services.reward.steps import aggregate
from shared.scoring import ScoreItem

Build = Callable[[Sequence[ScoreItem], ExternalConfig], Any]
Parse = Callable[[Any, ExternalConfig], list[Outcome]]

_WRONG = (AttributeError, LookupError, TypeError, ValueError, OverflowError)
"""What reading a reply that is not as it should be may raise."""


class Malformed(ValueError):
    """The reply is not what the contract says."""


class Contract(NamedTuple):
    build: Build
    """The request's JSON."""
    parse: Parse
    """One outcome per item, in the order of the request. A missing or wrong field may raise what it likes."""


def read_reply(contract: Contract, reply: Any, count: int, config: ExternalConfig) -> list[Outcome]:
    """The outcomes of `count` items in a reply.

    Raises:
    Malformed: a field is missing, or the count or order is another.
    """
    try:
        outcomes = contract.parse(reply, config)
    except _WRONG as error:
        raise Malformed(f"got a malformed reply: {_told(error)}") from error
    if len(outcomes) != count:
        raise Malformed(f"got {len(outcomes)} scores for {count} items")
    return outcomes


def _each(rows: Iterable[Any], read: Callable[[Any], Outcome]) -> list[Outcome]:
    """What `read` makes of each row; a row that it cannot read costs its own item, and no other."""
    outcomes: list[Outcome] = []
    for row in rows:
        try:
            outcomes.append(read(row))
        except _WRONG as error:
            outcomes.append(Failure("error", f"got no score: {_told(error)}"))
    return outcomes


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:200]}"


def number(value: Any) -> float:
    """A finite number; a boolean or a text is none.

    Raises:
    ValueError: it is something else.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{str(value)[:40]!r} is no finite number")
    return float(value)


def _texts(items: Sequence[ScoreItem], config: ExternalConfig) -> list[str]:
    return [fill(config.template, item) for item in items]


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"a list was expected, not {type(value).__name__}")
    return value


def _one_number(value: Any) -> float:
    """The number of a one-label model: alone, or in lists of one."""
    while isinstance(value, list):
        if len(value) != 1:
            raise ValueError(f"{len(value)} numbers for one item; a reward model has one label")
        value = value[0]
    return number(value)


def _vllm_request(items: Sequence[ScoreItem], config: ExternalConfig) -> dict[str, Any]:
    """Activation off: with it vLLM answers sigmoid(score), not the score."""
    body: dict[str, Any] = {"model": config.model, "use_activation": False}
    if config.send == "text":
        texts = _texts(items, config)
        return {**body, "input": texts, "add_special_tokens": config.add_special_tokens}
    (item,) = items  # a request holds one conversation
    return {**body, "messages": conversation(item), "add_generation_prompt": False}


def _vllm_data(reply: Any) -> list[Any]:
    data = _list(reply["data"])
    if any(row.get("index", position) != position for position, row in enumerate(data)):
        raise ValueError("the rows are not in the order of the request")
    return data


def _classify_scores(reply: Any, config: ExternalConfig) -> list[Outcome]:
    return _each(_vllm_data(reply), lambda row: _one_number(_list(row["probs"])))


def _pooling_request(items: Sequence[ScoreItem], config: ExternalConfig) -> dict[str, Any]:
    return {**_vllm_request(items, config), "task": config.task}


def _pooling_scores(reply: Any, config: ExternalConfig) -> list[Outcome]:
    rows = _vllm_data(reply)
    if config.task == "classify":
        return _each(rows, lambda row: _one_number(row["data"]))
    return _each(rows, lambda row: _steps(_list(row["data"]), config))


def _steps(rows: list[Any], config: ExternalConfig) -> Outcome:
    """Of each step the last label's number: "good" where the labels are bad and good."""
    steps = tuple(number(row[-1] if isinstance(row, list) else row) for row in rows)
    if not steps:
        raise ValueError("no step has a score")
    return Steps(aggregate(steps, config.aggregation), steps)


def _field(name: str) -> Parse:
    """The numbers of a reply's field; one alone may stand without its list."""

    def parse(reply: Any, config: ExternalConfig) -> list[Outcome]:
        values = reply[name]
        return _each(values if isinstance(values, list) else [values], _one_number)

    return parse


CONTRACTS: dict[str, Contract] = {
    "vllm_classify": Contract(_vllm_request, _classify_scores),
    "vllm_pooling": Contract(_pooling_request, _pooling_scores),
    "sglang_classify": Contract(
        lambda items, config: {"model": config.model, "text": _texts(items, config)},
        lambda reply, config: _each(_list(reply), lambda row: _one_number(_list(row["embedding"]))),
    ),
    # Each text in a list of its own: TEI takes ["a", "b"] for one pair. What is too long is refused, not cut.
    "tei_predict": Contract(
        lambda items, config: {
            "inputs": [[text] for text in _texts(items, config)],
            "raw_scores": True,
            "truncate": False,
        },
        lambda reply, config: _each(
            _list(reply), lambda labels: _one_number([label["score"] for label in _list(labels)])
        ),
    ),
    "openrlhf": Contract(
        lambda items, config: {
            "query": _texts(items, config),
            "prompts": [item.prompt for item in items],
            "labels": [item.ground_truth for item in items],
        },
        _field("rewards"),
    ),
    "llamafactory": Contract(
        lambda items, config: {"model": config.model, "messages": _texts(items, config)},
        _field("scores"),
    ),
}
"""Source of each: vLLM and SGLang server documentation, TEI `router/src/http`, OpenRLHF `remote_rm_utils.py`,
LLaMA-Factory `ppo_utils.py`."""
