"""From what the scorers gave for one item to its reward: the weighted sum."""

import math
from collections.abc import Mapping

from services.reward.protocol import Failure, Outcome, Steps
from shared.scoring import ScoreItem, ScoreResult


class Composition:
    """Which scorers an item is given to, and what becomes of their outcomes."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self.weights = dict(weights)

    def scorers_for(self, item: ScoreItem) -> list[str]:
        """The names of the scorers that must score `item`, in the order of their components."""
        return list(self.weights)

    def result(self, id: str, outcomes: Mapping[str, Outcome]) -> ScoreResult:
        """One result from one outcome per scorer. Any failure leaves the item without a reward."""
        components: dict[str, float] = {}
        steps: dict[str, list[float]] = {}
        failures: dict[str, list[str]] = {"invalid": [], "error": [], "timeout": []}
        for name, outcome in outcomes.items():
            if isinstance(outcome, Steps):
                steps[name] = list(outcome.steps)
                outcome = outcome.value
            if isinstance(outcome, Failure):
                failures[outcome.status].append(f"{name} {outcome.cause}")
            elif math.isfinite(outcome):
                components[name] = outcome
            else:
                failures["error"].append(f"{name} gave {outcome}")
        reward = sum(self.weights[name] * component for name, component in components.items())
        if not any(failures.values()) and not math.isfinite(reward):
            failures["error"].append(f"the weighted sum is {reward}")
        result = ScoreResult(id=id, reward=reward, components=components, status="ok")
        if steps:
            result.steps = steps
        for status, causes in failures.items():
            if causes:
                told = "; ".join(cause for causes in failures.values() for cause in causes)
                return result.model_copy(update={"reward": None, "status": status, "error": told})
        return result
