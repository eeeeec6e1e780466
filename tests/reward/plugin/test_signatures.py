"""Reward functions of other trainers, written as theirs are, run unchanged."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from services.reward.plugin.config import PluginConfig, Signature
from services.reward.plugin.signatures import Call, for_item
from services.reward.protocol import Steps, Unscorable
from shared.scoring import ScoreItem

ITEM = ScoreItem(
    prompt="rendered",
    response="<think>x</think>42",
    ground_truth="42",
    metadata={"messages": [{"role": "user", "content": "6*7?"}], "dataset": "sums", "level": 3},
)


def score(function: Callable[..., Any], signature: Signature, item: ScoreItem = ITEM, **settings: Any) -> Any:
    config = PluginConfig.model_validate({"path": "x.py", "signature": signature, **settings})
    return for_item(function, Call(*(getattr(config, field) for field in Call._fields)))(item)


def test_trl_conversational_with_columns_and_keywords() -> None:
    def accuracy(completions: list[list[dict[str, str]]], solution: list[str], **kwargs: Any) -> list[float]:
        assert kwargs["prompts"] == [[{"role": "user", "content": "6*7?"}]] and kwargs["level"] == [3]
        kwargs["log_metric"]("accuracy", 1.0)
        contents = [completion[0]["content"] for completion in completions]
        return [float(text.endswith(truth)) for text, truth in zip(contents, solution, strict=True)]

    assert score(accuracy, "trl", ground_truth_as="solution") == 1.0


def test_trl_on_texts_and_without_keywords() -> None:
    def length(prompts: list[str], completions: list[str]) -> list[int]:
        assert prompts == ["rendered"]
        return [len(completion) for completion in completions]

    assert score(length, "trl", conversational=False) == 18.0


def test_trl_async_and_none() -> None:
    async def slow(completions: list[Any], **kwargs: Any) -> list[float | None]:
        await asyncio.sleep(0)
        return [None if kwargs["level"] == [3] else 1.0]

    with pytest.raises(Unscorable, match="gave None"):
        score(slow, "trl")
    assert score(slow, "trl", replace(ITEM, metadata={"level": 1})) == 1.0


def test_trl_a_function_that_needs_token_ids_fails_instead_of_counting_none() -> None:
    def overlong(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
        return [-float(len(ids) > 100) for ids in completion_ids]

    with pytest.raises(TypeError):
        score(overlong, "trl")


def test_verl_with_a_dict_and_reward_kwargs() -> None:
    def compute_score(
        data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, bonus: float = 0
    ) -> dict[str, Any]:
        assert (data_source, extra_info) == ("sums", {"dataset": "sums", "level": 3})
        return {"score": float(solution_str.endswith(ground_truth)) + bonus, "acc": True}

    assert score(compute_score, "verl", parameters={"bonus": 0.5}) == 1.5


def test_verl_async_with_extra_info_of_its_own() -> None:
    async def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any) -> bool:
        return extra_info == {"split": "train"} and data_source == "a/b"

    metadata = {"data_source": "a/b", "extra_info": {"split": "train"}}
    assert score(compute_score, "verl", replace(ITEM, metadata=metadata)) == 1.0


def test_areal_with_its_answer() -> None:
    def gsm8k_reward_fn(
        prompt: str, completions: str, prompt_ids: Any, completion_ids: Any, answer: str, **kwargs: Any
    ) -> int:
        assert kwargs == {"dataset": "sums", "level": 3}
        return int(completions.endswith(answer))

    assert score(gsm8k_reward_fn, "areal") == 1.0


def test_a_rule_gets_the_item_and_its_parameters() -> None:
    def mine(item: ScoreItem, parameters: dict[str, Any]) -> Steps:
        return Steps(parameters["scale"] * len(item.response), (1.0, 2.0))

    assert score(mine, "rule", parameters={"scale": 2}) == Steps(36.0, (1.0, 2.0))


@pytest.mark.parametrize(
    ("signature", "given"),
    [
        ("trl", []),
        ("trl", [1.0, 2.0]),
        ("trl", 1.0),
        ("trl", ["1.0"]),
        ("verl", {"acc": 1.0}),
        ("verl", "1.0"),
        ("areal", [1.0]),
        ("rule", {}),
    ],
)
def test_what_is_no_number_for_the_item_is_refused(signature: Signature, given: Any) -> None:
    with pytest.raises((TypeError, ValueError, KeyError)):
        score(lambda *_, **__: given, signature)
