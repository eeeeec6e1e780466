"""LLaMA-Factory: `reward_model: http://HOST:8001/v1/score/evaluation`, `reward_model_type: api`.

Contract: `src/llamafactory/train/ppo/ppo_utils.py`, `get_rewards_from_server`, commit 0b1f4a3; its own server
in `src/llamafactory/api/chat.py`, commit 03b31ae. It posts `{"model": "model", "messages": [str]}`, each
text the decoded prompt and response with special tokens, and reads `scores` by position. It has no timeout,
no retry, and looks neither at the status nor at the length: whatever has a key `scores` is trained on, and
anything else ends the run with `KeyError: 'scores'`. So no error may carry that key.

There is neither ground truth nor the border between prompt and response in it, so only scorers that need
neither can serve it, which are reward models with `prompt_as = "text"`; others give 422 at the first request.
The text is scored as it is, end token and all, as its own server does.
"""

import uuid
from typing import Literal

from pydantic import BaseModel, Field

from services.reward.door import Door
from services.reward.problems import refusal
from services.reward.routes import Routes
from shared.scoring import ScoreItem


class ScoreEvaluation(BaseModel):
    model: str = ""
    messages: list[str]
    """Prompt and response together, special tokens kept."""
    max_length: int | None = None
    """Taken for the contract's sake; the scorers' own limits hold."""


class Evaluation(BaseModel):
    id: str = Field(default_factory=lambda: f"scoreval-{uuid.uuid4().hex}")
    object: Literal["score.evaluation"] = "score.evaluation"
    model: str
    scores: list[float]


def score_evaluation(wanted: ScoreEvaluation, door: Door) -> Evaluation:
    """LLaMA-Factory's reward API: one score per text, in order. No ground truth: not for answer checking."""
    if not wanted.messages:
        raise refusal(400, "messages is empty", field="messages")
    scored = door.score_all([ScoreItem(response=text) for text in wanted.messages])
    return Evaluation(model=wanted.model, scores=[reward for reward, _ in scored])


EXAMPLE = (
    {"model": "model", "messages": ["<|user|>Be kind.<|assistant|>With pleasure!</s>"]},
    {
        "id": "scoreval-6f1d8a3c9c5b4c0ea2f4b1d0a7e65432",
        "object": "score.evaluation",
        "model": "model",
        "scores": [0.25],
    },
)


def add(routes: Routes) -> None:
    routes.post(
        "/v1/score/evaluation", ScoreEvaluation, Evaluation, score_evaluation, EXAMPLE, "LLaMA-Factory"
    )
