"""NeMo-Gym's resources server contract, asked as its `simple_agent` (commit 00be44f) does it."""

from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from tests.reward.compat.wire import AIOHTTP, post
from tests.reward.groups import RIGHT, WRONG


class BaseVerifyResponse(BaseModel):
    """What the agent validates the reply against (commit 011c338), the OpenAI objects as mappings."""

    model_config = ConfigDict(extra="allow")

    responses_create_params: dict[str, Any]
    response: dict[str, Any]
    reward: float
    mask_sample: bool = False
    failure_kind: str | None = None


def request(*texts: str, **task: Any) -> dict[str, Any]:
    outputs = [
        {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": None},
        {"type": "function_call", "call_id": "c", "name": "calculate", "arguments": "{}"},
        *(
            {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": text, "annotations": [], "logprobs": None}],
            }
            for text in texts
        ),
    ]
    return {
        "responses_create_params": {
            "input": [{"role": "user", "content": "9+9?", "type": "message"}],
            "temperature": 1.0,
        },
        "response": {
            "id": "resp_1",
            "object": "response",
            "created_at": 1.0,
            "model": "m",
            "output": outputs,
            "tools": [],
        },
        **task,
    }


def run(url: str, payload: dict[str, Any]) -> BaseVerifyResponse:
    task = {key: value for key, value in payload.items() if key != "response"}
    post(AIOHTTP, f"{url}/seed_session", task).raise_for_status()
    answer = post(AIOHTTP, f"{url}/verify", payload)
    answer.raise_for_status()
    return BaseVerifyResponse.model_validate(answer.json())


@pytest.mark.parametrize("field", ["expected_answer", "ground_truth", "answer"])
def test_the_task_comes_back_with_a_reward(gsm8k: str, field: str) -> None:
    payload = request(RIGHT, uuid="u", question="9+9?", **{field: "18"})
    verified = run(gsm8k, payload)
    assert verified.reward == 10.0
    echoed = verified.model_dump(exclude_unset=True)
    assert echoed.pop("reward_components") == {"gsm8k_reward_fn": 10.0}
    assert echoed.pop("reward") == 10.0
    assert echoed == payload


def test_the_texts_of_all_messages_are_the_response(gsm8k: str) -> None:
    assert run(gsm8k, request(WRONG[:9], WRONG[9:], expected_answer="18")).reward == 1.0


def test_the_fields_of_a_task_reach_the_scorers_but_for_what_is_reserved(textual: str) -> None:
    told = post(AIOHTTP, f"{textual}/verify", request("fine", fail=True))
    assert told.status == 503 and "judge is away" in told.text
    assert run(textual, request("fine", rollstream={"completion_tokens": 3})).reward == 4.0


def test_a_failure_is_a_status_not_a_reward_of_zero(textual: str, gsm8k: str) -> None:
    failed = post(AIOHTTP, f"{textual}/verify", request("fail"))
    assert (failed.status, failed.json().keys()) == (503, {"detail"})
    missing = post(AIOHTTP, f"{gsm8k}/verify", request(RIGHT))
    assert (missing.status, missing.json().keys()) == (422, {"detail"})


@pytest.mark.parametrize(
    "output", [[{"type": "message"}], [{"type": "message", "content": "x"}], [5], "text", None]
)
def test_an_output_that_is_none_is_refused(gsm8k: str, output: Any) -> None:
    payload = request(RIGHT, expected_answer="18")
    payload["response"]["output"] = output
    answer = post(AIOHTTP, f"{gsm8k}/verify", payload)
    assert answer.status == 422
    assert str(answer.json()["detail"][0]["field"]).startswith("response.output")
