"""slime: `--rm-type remote_rm --rm-url http://HOST:8001/rm`.

Contract: `slime/rollout/rm_hub/__init__.py`, `remote_rm`, commit 0b420f1. It posts
`{"prompt": str or [message], "response": str, "label": str or null}` for one sample and takes the whole reply
as its reward: a bare number, or with `--reward-key KEY` that key of an object. 120 seconds; ten tries on any
error with 1, 2, 4 ... 30 seconds between them; then it raises.
"""

from typing import Any

from pydantic import BaseModel

from services.reward.compat.texts import ground_truth, prompt_item, without_end
from services.reward.door import Door
from services.reward.routes import Routes


class RemoteRm(BaseModel):
    prompt: str | list[dict[str, Any]] = ""
    response: str
    label: Any = None
    """Ground truth; what is not text is taken as JSON."""


def rm(wanted: RemoteRm, door: Door) -> float:
    """slime's remote reward model: the answer is the reward, a bare number."""
    return _score(wanted, door)[0]


def rm_object(wanted: RemoteRm, door: Door) -> dict[str, float]:
    """The same as an object with the components beside `reward`, for `--reward-key reward`."""
    reward, components = _score(wanted, door)
    return {**components, "reward": reward}


def _score(wanted: RemoteRm, door: Door) -> tuple[float, dict[str, float]]:
    response = without_end(wanted.response, door.config.end_tokens)
    item = prompt_item(wanted.prompt, response, ground_truth(wanted.label, field="label"), "prompt")
    return door.score_all([item])[0]


SAMPLE = {
    "prompt": "What is 9+9?",
    "response": "<think>9+9</think><answer>18</answer><|im_end|>",
    "label": "18",
}


def add(routes: Routes) -> None:
    routes.post("/rm", RemoteRm, float, rm, (SAMPLE, 10.0), "slime")
    both = {"gsm8k_reward_fn": 10.0, "reward": 10.0}
    routes.post("/rm/object", RemoteRm, dict[str, float], rm_object, (SAMPLE, both), "slime")
