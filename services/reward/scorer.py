"""The scoring core behind both doors, stream and REST: weighted sums of rules, and a status per item."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from services.reward.math_answer import Tags
from services.reward.rules import Rule, Unscorable, find_rule
from shared.scoring import ScoreItem, ScoreResult


class Scorer:
    """Scores items by a weighted sum of rules.

    There is no deadline here, and so no status `timeout`: every rule runs in time linear in the response,
    whose length is bounded. A scorer that can hang would need a process that can be killed.
    """

    def __init__(self, weights: Mapping[str, float], tags: Tags, max_response_characters: int) -> None:
        """Raises:
        ValueError: a name in `weights` is no rule.
        """
        self.weights = dict(weights)
        self._rules = {name: find_rule(name) for name in weights}
        self._tags = tags
        self._max_response_characters = max_response_characters

    def score(self, items: Sequence[ScoreItem], scorers: Sequence[str] | None = None) -> list[ScoreResult]:
        """One result per item, in order. `scorers` replaces the configured ones, each with weight 1.

        Raises:
        ValueError: a name in `scorers` is no rule, or there is none.
        """
        weights, rules = self.weights, self._rules
        if scorers is not None:
            if not scorers:
                raise ValueError("the list is empty; leave it out to use the configured scorers")
            weights, rules = dict.fromkeys(scorers, 1.0), {name: find_rule(name) for name in scorers}
        return [
            self._score_item(str(position) if item.id is None else item.id, item, weights, rules)
            for position, item in enumerate(items)
        ]

    def _score_item(
        self, id: str, item: ScoreItem, weights: Mapping[str, float], rules: Mapping[str, Rule]
    ) -> ScoreResult:
        length = len(item.response)
        if length > self._max_response_characters:
            cause = f"response has {length} characters, more than max_response_characters"
            return _failure(id, {}, "invalid", f"{cause} = {self._max_response_characters}")
        components: dict[str, float] = {}
        invalid, errors = [], []
        for name, rule in rules.items():
            try:
                component = float(rule(item.response, item.ground_truth, self._tags))
            except Unscorable as error:
                invalid.append(f"{name} {error}")
            except Exception as error:  # whatever a scorer raises becomes this item's status, and no other's
                errors.append(f"{name} raised {type(error).__name__}: {error}")
            else:
                if math.isfinite(component):
                    components[name] = component
                else:
                    errors.append(f"{name} gave {component}")
        if invalid or errors:
            return _failure(id, components, "invalid" if invalid else "error", "; ".join(invalid + errors))
        reward = sum(weights[name] * component for name, component in components.items())
        if not math.isfinite(reward):
            return _failure(id, components, "error", f"the weighted sum is {reward}")
        return ScoreResult(id=id, reward=reward, components=components, status="ok")


def _failure(
    id: str, components: dict[str, float], status: Literal["error", "invalid"], cause: str
) -> ScoreResult:
    return ScoreResult(id=id, reward=None, components=components, status=status, error=cause)
