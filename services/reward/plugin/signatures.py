"""Reward functions as other trainers call them, for one item each, so that theirs run unchanged.

Token ids are given as None: this service has texts only, and a made-up list would be a wrong length.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from services.reward.conversation import MESSAGES, conversation
from services.reward.plugin.config import Signature
from services.reward.protocol import Steps, Unscorable
from shared.scoring import ScoreItem

ItemFunction = Callable[[ScoreItem], float | Steps]


class Call(NamedTuple):
    """How a function is to be called."""

    signature: Signature
    parameters: dict[str, Any]
    ground_truth_as: str | None
    conversational: bool


def for_item(function: Callable[..., Any], call: Call) -> ItemFunction:
    """`function`, sync or async, as a function from an item to a number.

    It raises `Unscorable` where the function gives None: TRL's sign that an item is none of its business.
    """
    ask = {"rule": _rule, "trl": _trl, "verl": _verl, "areal": _areal}[call.signature]

    def score(item: ScoreItem) -> float | Steps:
        given = ask(function, item, call)
        if inspect.isawaitable(given):
            given = asyncio.run(_finish(given))
        return _read(given, call.signature)

    return score


async def _finish(given: Awaitable[Any]) -> Any:
    return await given


def _rule(function: Callable[..., Any], item: ScoreItem, call: Call) -> Any:
    return function(item, call.parameters)


def _trl(function: Callable[..., Any], item: ScoreItem, call: Call) -> Any:
    """Source: TRL, `GRPOTrainer._calculate_rewards`: lists as long as the batch, columns by name."""
    messages = conversation(item) if call.conversational else []
    columns = {**_columns(item), call.ground_truth_as or "ground_truth": item.ground_truth}
    arguments: dict[str, Any] = {
        **{name: [value] for name, value in columns.items()},
        "prompts": [messages[:-1]] if messages else [item.prompt],
        "completions": [messages[-1:]] if messages else [item.response],
        "completion_ids": [None],
        "trainer_state": None,
        "log_extra": _log_nothing,
        "log_metric": _log_nothing,
        **call.parameters,
    }
    return _call(function, arguments)


def _verl(function: Callable[..., Any], item: ScoreItem, call: Call) -> Any:
    """Source: verl, `NaiveRewardManager` and `custom_reward_function` with its `reward_kwargs`."""
    metadata = _columns(item)
    extra_info = metadata.get("extra_info", metadata)
    return function(
        data_source=metadata.get("data_source", metadata.get("dataset", "")),
        solution_str=item.response,
        ground_truth=item.ground_truth,
        extra_info=extra_info,
        **call.parameters,
    )


def _areal(function: Callable[..., Any], item: ScoreItem, call: Call) -> Any:
    """Source: AReaL, `areal/reward` and `AsyncRewardWrapper`."""
    arguments = {
        **_columns(item),
        call.ground_truth_as or "answer": item.ground_truth,
        "prompt": item.prompt,
        "completions": item.response,
        "prompt_ids": None,
        "completion_ids": None,
        **call.parameters,
    }
    return _call(function, arguments)


def _call(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """With all arguments, or those that it has where it does not take any."""
    parameters = inspect.signature(function).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        arguments = {name: value for name, value in arguments.items() if name in parameters}
    return function(**arguments)


def _columns(item: ScoreItem) -> dict[str, Any]:
    return {name: value for name, value in item.metadata.items() if name != MESSAGES}


def _log_nothing(*values: Any) -> None:
    """TRL's functions may log; only their rewards are of use here."""


def _read(given: Any, signature: Signature) -> float | Steps:
    """Raises:
    Unscorable: it is None.
    TypeError, ValueError: it is no number, or not one for one item.
    """
    if signature == "trl":
        if len(given) != 1:
            raise ValueError(f"{len(given)} rewards for one completion")
        given = given[0]
    if signature == "verl" and isinstance(given, dict):
        given = given["score"]
    if given is None:
        raise Unscorable("gave None: it is not for this item. Choose scorers per dataset in the composition")
    if isinstance(given, str | bytes):
        raise TypeError(f"{given[:40]!r} is no number")
    return given if isinstance(given, Steps) else float(given)
