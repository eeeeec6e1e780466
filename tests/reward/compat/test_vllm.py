"""vLLM's `/classify`, asked as clients of a served reward model do and checked against vLLM's own models."""

from typing import Any

import openai
import pytest
from pydantic import BaseModel, ConfigDict

from tests.reward.compat.wire import REQUESTS, Answer, post


class ClassificationData(BaseModel):
    """As in vLLM 0.32.0, `entrypoints/pooling/classify/protocol.py`."""

    model_config = ConfigDict(extra="forbid")

    index: int
    label: str | None
    probs: list[float]
    num_classes: int


class ClassificationResponse(BaseModel):
    model_config = ConfigDict(extra="allow")

    id: str
    object: str
    created: int
    model: str
    data: list[ClassificationData]
    usage: dict[str, Any]


def classify(url: str, **payload: Any) -> Answer:
    return post(REQUESTS, f"{url}/classify", {"model": "reward", **payload})


def rewards(answer: Answer) -> list[float]:
    answer.raise_for_status()
    response = ClassificationResponse.model_validate(answer.json())
    assert [datum.index for datum in response.data] == list(range(len(response.data)))
    assert all(datum.num_classes == len(datum.probs) for datum in response.data)
    return [datum.probs[-1] for datum in response.data]


def test_texts_give_raw_rewards_by_position(textual: str) -> None:
    assert rewards(classify(textual, input=["abc", "abcde"], use_activation=False)) == [3.0, 5.0]
    assert rewards(classify(textual, input="abcd", use_activation=False)) == [4.0]


def test_a_conversation_gives_the_reward_of_its_last_message(textual: str) -> None:
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "abc"}]
    assert rewards(classify(textual, messages=messages, use_activation=False)) == [3.0]


@pytest.mark.parametrize(
    "payload",
    [
        {"input": ["abc"], "use_activation": True},
        {"input": [1, 2, 3]},
        {"input": [[1, 2, 3]]},
        {},
        {"input": "a", "messages": []},
        {"messages": [{"role": "user", "content": "x"}]},
        {"messages": [{"role": "assistant", "content": [{"type": "image_url"}]}]},
        {"input": ["abc", "fail"]},
    ],
)
def test_what_cannot_be_served_has_no_data(textual: str, payload: dict[str, Any]) -> None:
    answer = classify(textual, **payload)
    assert answer.status in (422, 503)
    assert answer.json().keys() == {"detail"}


def test_a_client_finds_a_model_to_name(textual: str) -> None:
    with openai.OpenAI(base_url=f"{textual}/v1", api_key="none") as client:
        (model,) = client.models.list().data
    assert rewards(classify(textual, model=model.id, input="four")) == [4.0]
