"""NeMo-Gym: a resources server with `POST /verify` and `POST /seed_session`.

Contract: NVIDIA-NeMo/Gym `nemo_gym/base_resources_server.py`, `BaseVerifyRequest` and `BaseVerifyResponse`,
commit 011c338; the caller in `responses_api_agents/simple_agent/app.py`, commit 00be44f; the joining of texts
as in `resources_servers/math_with_judge/app.py`, commit 05a4377. The agent seeds a session, then posts
`{"responses_create_params": {...}, "response": {OpenAI Responses object}, ...fields of the task}`, raises on
any error status without another try, and validates the reply: the request's fields, and `reward`.
NeMo-Gym's own way to tell of a failure is `reward: 0.0` with a mark beside it; here it is an error status.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from services.reward.compat.texts import ground_truth, message_text, prompt_item
from services.reward.door import Door
from services.reward.problems import refusal
from services.reward.routes import Routes
from shared.scoring import SERVICE_KEY

TRUTHS = ("expected_answer", "ground_truth", "answer")
"""Fields of a task that may hold its ground truth; the first that is there is taken."""


class CreateParams(BaseModel):
    model_config = ConfigDict(extra="allow")

    input: str | list[dict[str, Any]] = ""


class Response(BaseModel):
    model_config = ConfigDict(extra="allow")

    output: list[dict[str, Any]]


class Verify(BaseModel):
    model_config = ConfigDict(extra="allow")

    responses_create_params: CreateParams
    response: Response


class Verified(Verify):
    reward: float
    reward_components: dict[str, float]


class Session(BaseModel):
    model_config = ConfigDict(extra="allow")


class Seeded(BaseModel):
    """Nothing: scoring keeps no session."""

    model_config = ConfigDict(json_schema_extra={"maxProperties": 0})


def verify(wanted: Verify, door: Door) -> dict[str, Any]:
    """NeMo-Gym's verification: the request's fields come back with `reward` and `reward_components`."""
    task = wanted.model_extra or {}
    field = next((name for name in TRUTHS if task.get(name) is not None), TRUTHS[0])
    messages = [output for output in wanted.response.output if output.get("type") == "message"]
    item = prompt_item(
        _messages(wanted.responses_create_params.input),
        "".join(map(_output_text, messages)),
        ground_truth(task.get(field), field=field),
        "responses_create_params.input",
    )
    item.metadata = _facts(task) | item.metadata
    ((reward, components),) = door.score_all([item])
    return {**wanted.model_dump(exclude_unset=True), "reward": reward, "reward_components": components}


def _facts(task: Mapping[str, Any]) -> dict[str, Any]:
    """What rules may want of a task beside its ground truth: its data set, its tests, its schema."""
    return {name: value for name, value in task.items() if name not in (*TRUTHS, SERVICE_KEY)}


def seed_session(_: Session, __: Door) -> Seeded:
    """NeMo-Gym's start of an episode, which needs nothing here."""
    return Seeded()


def _messages(given: str | list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """The messages of a conversation; reasoning and tool calls between them have no `content` to show."""
    return given if isinstance(given, str) else [message for message in given if "content" in message]


def _output_text(message: dict[str, Any]) -> str:
    content = message.get("content")
    if not isinstance(content, list):
        raise refusal(422, "content of a message must be a list of parts", field="response.output")
    parts = [part for part in content if isinstance(part, dict) and part.get("type") == "output_text"]
    return message_text({"content": parts}, "response.output")


VERIFY = {
    "responses_create_params": {"input": [{"role": "user", "content": "What is 9+9?"}]},
    "response": {
        "id": "resp_1",
        "output": [
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "<think>9+9</think><answer>18</answer>"}],
            }
        ],
    },
    "expected_answer": "18",
}
VERIFIED = {**VERIFY, "reward": 10.0, "reward_components": {"gsm8k_reward_fn": 10.0}}


def add(routes: Routes) -> None:
    routes.post("/verify", Verify, Verified, verify, (VERIFY, VERIFIED), "NeMo-Gym")
    routes.post("/seed_session", Session, Seeded, seed_session, ({}, {}), "NeMo-Gym")
