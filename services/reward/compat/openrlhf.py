"""OpenRLHF: `--reward.remote_url http://HOST:8001/get_reward` (before April 2026 `--remote_rm_url`).

Contract: OpenRLHF 0.11, `openrlhf/utils/agent.py` of 2026-08-13, `SingleTurnAgentExecutor`
`._fetch_rewards_via_http`; read again at commit 04655bc (same request). It posts
`{"query": [str], "prompts": [str], "labels": [any]}`, one sample at a time, and to each further URL the same
with empty lists. 180 seconds, five tries a second apart on any error, 4xx included; then the reward stays
None and the trainer stops for want of a reward model. Of the reply it reads `rewards`, `scores` (which must
lie in 0 to 1 where dynamic filtering is on) and `extra_logs`, whose values go into tensors.
Clients of 2024 (commit 07c34b3) send `query` alone.
"""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from services.reward.compat.texts import after_prompt, ground_truth, without_end
from services.reward.config import RewardConfig
from services.reward.door import Door
from services.reward.problems import refusal
from services.reward.routes import Routes
from shared.scoring import ScoreItem


class GetReward(BaseModel):
    query: list[str]
    """Prompt and response together, special tokens kept."""
    prompts: list[str] | None = None
    labels: list[Any] | None = None
    """Ground truths; what is not text is taken as JSON."""


class Rewards(BaseModel):
    rewards: list[float]
    scores: list[float]
    extra_logs: dict[str, list[float]]
    """Components by scorer."""


def get_reward(wanted: GetReward, door: Door) -> Rewards:
    """OpenRLHF's remote reward model. The response is what follows the prompt in `query`."""
    door.check_count(len(wanted.query))  # before any text is searched
    texts = (("query", wanted.query), ("prompts", wanted.prompts or []))
    door.check_texts((position, field, text) for field, given in texts for position, text in enumerate(given))
    scored = door.score_all(_items(wanted, door.config.end_tokens))
    rewards = [reward for reward, _ in scored]
    logs = {name: [components[name] for _, components in scored] for name in _always_asked(door.config)}
    return Rewards(rewards=rewards, scores=rewards, extra_logs=logs)


def _items(wanted: GetReward, end_tokens: Sequence[str]) -> list[ScoreItem]:
    count = len(wanted.query)
    for field, values in (("prompts", wanted.prompts), ("labels", wanted.labels)):
        if values is not None and len(values) != count:
            raise refusal(422, f"{len(values)} values for {count} in query", field=field)
    items = []
    for position, query in enumerate(wanted.query):
        prompt = wanted.prompts[position] if wanted.prompts is not None else ""
        response = after_prompt(query, prompt)
        if response is None:
            # Taking the whole text would let rules find an answer in the prompt's examples.
            raise refusal(422, "query does not hold its prompt", position, "query")
        label = wanted.labels[position] if wanted.labels is not None else None
        truth = ground_truth(label, position)
        items.append(ScoreItem(prompt=prompt, response=without_end(response, end_tokens), ground_truth=truth))
    return items


def _always_asked(config: RewardConfig) -> list[str]:
    """The scorers that score every item. The client wants the same logs of every sample, and a gate that is
    closed leaves the components behind it out."""
    gates = config.composition.gates
    return [gates[0].scorer] if gates else list(config.scorers)


EXAMPLE = (
    {
        "query": ["<s>What is 9+9?<think>9+9</think><answer>18</answer></s>"],
        "prompts": ["What is 9+9?"],
        "labels": ["18"],
    },
    {"rewards": [10.0], "scores": [10.0], "extra_logs": {"gsm8k_reward_fn": [10.0]}},
)


def add(routes: Routes) -> None:
    routes.post("/get_reward", GetReward, Rewards, get_reward, EXAMPLE, "OpenRLHF")
