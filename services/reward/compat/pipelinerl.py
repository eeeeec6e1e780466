"""PipelineRL: the math environment's `POST /verify_answer`; host and port are in its configuration.

Contract: ServiceNow/PipelineRL `pipelinerl/domains/math/verifier_api.py`, `verify_answer_rpc` and
`verify_math`, commit 2c5b60b. It posts `{"prediction": str, "gold": str, "strict": bool,
"max_prediction_length": int}` and reads `answer_status`; any status but 200 raises, without another try.
The last `\\boxed{` to the end of the prediction is what is judged, by math-verify.
"""

import re
from typing import Literal

from pydantic import BaseModel, Field

from services.reward.core import DEFAULT
from services.reward.door import Door
from services.reward.problems import refusal
from services.reward.routes import Routes
from shared.scoring import ScoreItem

RULE = f"{DEFAULT}math_verify"
BOX = "\\boxed{"
_EMPTY = re.compile(r"\\boxed\{\s*\}")

Status = Literal["correct", "wrong", "no_answer", "unparsable"]


class VerifyAnswer(BaseModel):
    prediction: str
    gold: str
    strict: Literal[True] = True
    """math-verify's strict comparison; the loose one is refused."""
    max_prediction_length: int = Field(default=1000, ge=0)
    """Characters from the last box to the end; more are `unparsable`."""


class AnswerStatus(BaseModel):
    answer_status: Status


def verify_answer(wanted: VerifyAnswer, door: Door) -> AnswerStatus:
    """PipelineRL's check of a mathematical answer: correct, wrong, no_answer or unparsable."""
    if wanted.prediction.startswith("countdown"):
        raise refusal(422, "its countdown task is not served", field="prediction")
    return AnswerStatus(answer_status=_judge(wanted, door))


def _judge(wanted: VerifyAnswer, door: Door) -> Status:
    start = wanted.prediction.rfind(BOX)
    if start < 0:
        return "no_answer"
    answer = wanted.prediction[start:]
    if _EMPTY.search(answer) or len(answer) > wanted.max_prediction_length:
        return "unparsable"
    door.need(RULE)
    item = ScoreItem(response=answer, ground_truth=wanted.gold)
    (result,) = door.score([item], [RULE])
    ((reward, _),) = door.all_of([result])
    return "correct" if reward == 1 else "wrong"


EXAMPLE = (
    {
        "prediction": "so it is \\boxed{\\frac{1}{2}}",
        "gold": "\\boxed{0.5}",
        "strict": True,
        "max_prediction_length": 1000,
    },
    {"answer_status": "correct"},
)


def add(routes: Routes) -> None:
    routes.post("/verify_answer", VerifyAnswer, AnswerStatus, verify_answer, EXAMPLE, "PipelineRL", True)
