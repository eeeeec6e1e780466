"""vLLM: `POST /classify`, as a served sequence classification model answers it.

Contract: vLLM 0.32.0, `vllm/entrypoints/pooling/classify/protocol.py` (`ClassificationRequest`,
`ClassificationResponse`) and `serving.py`. A client reads `data[i].probs`; the reward is its one value, as it
comes, so `use_activation: true`, which asks for a number between 0 and 1, is refused. Token ids are refused:
they mean something only to the model they were made for. Without `messages`, a text is prompt and response in
one, scored as it is; no ground truth comes with either.
"""

import time
import uuid
from typing import Any, Literal

from pydantic import BaseModel, Field

from services.reward.compat.texts import message_text, prompt_item
from services.reward.door import Door
from services.reward.problems import ANSWERS, refusal
from services.reward.routes import Routes
from shared.scoring import ScoreItem

NAME = "rollstream"


class Classify(BaseModel):
    model: str | None = None
    input: str | list[str] | None = None
    messages: list[dict[str, Any]] | None = None
    """A conversation that ends with the response; in place of `input`."""
    use_activation: Literal[False] | None = None
    """Rewards are raw; true is refused."""


class Class(BaseModel):
    index: int
    label: str | None = None
    probs: list[float]
    num_classes: int = 1


class Usage(BaseModel):
    """No tokens are counted: scorers differ in theirs, and rules have none."""

    prompt_tokens: int = 0
    total_tokens: int = 0
    completion_tokens: int = 0


class Classes(BaseModel):
    id: str = Field(default_factory=lambda: f"classify-{uuid.uuid4().hex}")
    object: Literal["list"] = "list"
    created: int = Field(default_factory=lambda: int(time.time()))
    model: str
    data: list[Class]
    usage: Usage = Usage()


def classify(wanted: Classify, door: Door) -> Classes:
    """vLLM's classification of a reward model with one label: the raw reward in `data[i].probs[0]`."""
    scored = door.score_all(_items(wanted))
    data = [Class(index=index, probs=[reward]) for index, (reward, _) in enumerate(scored)]
    return Classes(model=wanted.model or NAME, data=data)


def _items(wanted: Classify) -> list[ScoreItem]:
    if (wanted.input is None) == (wanted.messages is None):
        raise refusal(422, "either input or messages must be given", field="input")
    if wanted.messages is not None:
        if not wanted.messages or wanted.messages[-1].get("role") != "assistant":
            raise refusal(422, "the last message must be the assistant's", field="messages")
        *before, last = wanted.messages
        return [prompt_item(before, message_text(last, "messages"), None, "messages")]
    texts = [wanted.input] if isinstance(wanted.input, str) else wanted.input or []
    return [ScoreItem(response=text) for text in texts]


EXAMPLE = (
    {"model": "reward", "input": ["Be kind.\nWith pleasure!"], "use_activation": False},
    {
        "id": "classify-6f1d8a3c9c5b4c0ea2f4b1d0a7e65432",
        "object": "list",
        "created": 1795230000,
        "model": "reward",
        "data": [{"index": 0, "label": None, "probs": [0.25], "num_classes": 1}],
        "usage": {"prompt_tokens": 0, "total_tokens": 0, "completion_tokens": 0},
    },
)


def add(routes: Routes) -> None:
    routes.post("/classify", Classify, Classes, classify, EXAMPLE, "vLLM")

    @routes.router.get("/v1/models", tags=["vLLM"], responses={401: ANSWERS[401], 429: ANSWERS[429]})
    async def models() -> dict[str, Any]:
        """For clients that ask which model is served before they name it; any name is taken."""
        return {"object": "list", "data": [{"id": NAME, "object": "model", "created": 0, "owned_by": NAME}]}
