"""Calls a rule as the core would, in this process."""

from typing import Any

from services.reward.kinds import parse_scorer
from services.reward.math_answer import Tags
from services.reward.protocol import Steps
from services.reward.rules.config import RuleConfig
from services.reward.rules.table import RULES
from shared.scoring import ScoreItem


def configure(name: str, **parameters: Any) -> RuleConfig:
    config = parse_scorer(name, parameters, Tags())
    assert isinstance(config, RuleConfig)
    return config


def ask(
    name: str,
    response: str,
    ground_truth: str | None = None,
    metadata: dict[str, Any] | None = None,
    **parameters: Any,
) -> float:
    item = ScoreItem(prompt="", response=response, ground_truth=ground_truth, metadata=metadata or {})
    found = RULES[name].function(item, configure(name, **parameters))
    assert not isinstance(found, Steps)
    return found


def tokens(count: int) -> dict[str, Any]:
    return {"rollstream": {"completion_tokens": count, "finish_reason": "stop"}}


def answer(text: str) -> str:
    return f"<think>r</think><answer>{text}</answer>"
