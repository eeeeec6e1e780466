"""From what the scorers gave for an item to its reward: choice per dataset, gates, thresholds, clips, sum."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated

from pydantic import Field, FiniteFloat

from services.reward.kinds import suggestion
from services.reward.protocol import Clip, Failure, Outcome, ScorerConfig, Steps
from shared.config import Table
from shared.scoring import ScoreItem, ScoreResult, StepReward


class GateConfig(Table):
    """A scorer that must be passed before any other counts. It gates the items that it scores."""

    scorer: str
    at_least: FiniteFloat
    """What the scorer must give to let an item pass."""
    otherwise: FiniteFloat = 0.0
    """The reward of an item that does not pass; the scorers after the gate are not asked for it."""


class CompositionConfig(Table):
    """The `[reward.composition]` table. Without it the reward is the weighted sum of all scorers."""

    dataset_key: str = "dataset"
    """The key of an item's metadata that names its dataset."""
    datasets: dict[str, Annotated[dict[str, FiniteFloat], Field(min_length=1)]] = Field(default_factory=dict)
    """Per dataset, the scorers for its items with their weights there; items of others get all scorers."""
    gates: list[GateConfig] = Field(default_factory=list)
    """In the order in which they are tried."""
    clip: Clip | None = None
    """Lowest and highest reward; a gate's `otherwise` is not clipped."""

    def check(self, scorers: Collection[str]) -> None:
        """Raises:
        ValueError: it names a scorer that is not in `scorers`.
        """
        named = {name for weights in self.datasets.values() for name in weights}
        named |= {gate.scorer for gate in self.gates}
        for name in sorted(named.difference(scorers)):
            raise ValueError(f"composition: no scorer {name!r} is configured. {suggestion(name, scorers)}")


_GRAVITY = ("invalid", "error", "timeout")
"""Of several failures the first of these is the item's status."""


class Composition:
    """Which scorers an item is given to, and what becomes of their outcomes."""

    def __init__(self, scorers: Mapping[str, ScorerConfig], config: CompositionConfig | None = None) -> None:
        self.weights = {name: table.weight for name, table in scorers.items()}
        self._scorers = scorers
        self._config = config or CompositionConfig()
        self.has_gates = bool(self._config.gates)
        """Whether what one scorer gives decides which are asked next."""
        self.is_uniform = not self.has_gates and not self._config.datasets
        """Whether every item is given to every scorer."""
        bent = self._config.clip or any(
            table.clip or table.threshold is not None or table.place_steps for table in scorers.values()
        )
        self._is_sum = self.is_uniform and not bent
        """Whether the reward is the weighted sum and nothing else."""

    def scorers_for(self, item: ScoreItem, known: Mapping[str, Outcome]) -> list[str]:
        """The scorers that must score `item` next, when others gave what is `known`; none at the end.

        Gates come first, one by one. Where one is closed or failed, nothing else is asked.
        """
        weights = self._weights_for(item)
        for gate in self._config.gates:
            if gate.scorer in weights:
                if gate.scorer not in known:
                    return [gate.scorer]
                value = _number(known[gate.scorer])
                if value is None or value < gate.at_least:
                    return []
        return [name for name in weights if name not in known]

    def results(
        self, items: Sequence[tuple[str, ScoreItem]], outcomes: Sequence[dict[str, Outcome]]
    ) -> list[ScoreResult]:
        """`result` of each item with its id. `outcomes` may become the results' components.

        Most are a weighted sum of finite numbers: those are made here without a call for each, for some rules
        take no longer than that. What is not finite shows in the sum, also with weight 0.
        """
        results = []
        weights = list(self.weights.items())
        for (id, item), known in zip(items, outcomes, strict=True):
            total = 0.0 if self._is_sum else math.nan
            for name, weight in weights:
                outcome = known.get(name)
                if type(outcome) is float:
                    total += weight * outcome
                else:
                    total = math.nan
            if math.isfinite(total):
                results.append(ScoreResult(id, total, known))  # type: ignore[arg-type]  # all are numbers
            else:
                results.append(self.result(id, item, known))
        return results

    def result(self, id: str, item: ScoreItem, outcomes: Mapping[str, Outcome]) -> ScoreResult:
        """One result from the outcomes of all scorers that were asked. Any failure leaves it without reward.

        `components` are what the scorers gave, before clip, threshold and weight.
        """
        components: dict[str, float] = {}
        steps: dict[str, list[float]] = {}
        failures: list[Failure] = []
        for name, outcome in outcomes.items():
            if isinstance(outcome, Failure):
                failures.append(Failure(outcome.status, f"{name} {outcome.cause}"))
                continue
            if isinstance(outcome, Steps):
                steps[name] = list(outcome.steps)
            value = _value(outcome)
            if math.isfinite(value):
                components[name] = value
            else:
                failures.append(Failure("error", f"{name} gave {value}"))
            if self._scorers[name].place_steps and (cause := _misplaced(outcome, item)):
                failures.append(Failure("error", f"{name} {cause}"))
        reward, placed = (None, []) if failures else self._reward(item, components, outcomes)
        if reward is not None and not math.isfinite(reward):
            failures, reward = [Failure("error", f"the weighted sum is {reward}")], None
        if failures:
            failures.sort(key=lambda failure: _GRAVITY.index(failure.status))
            status, error = failures[0].status, "; ".join(failure.cause for failure in failures)
            result = ScoreResult(id=id, reward=None, components=components, status=status, error=error)
        else:
            result = ScoreResult(id, reward, components)
        if placed and result.status == "ok":
            result.step_rewards = placed
        if steps:
            result.steps = steps
        return result

    def _reward(
        self, item: ScoreItem, components: Mapping[str, float], outcomes: Mapping[str, Outcome]
    ) -> tuple[float, list[StepReward]]:
        """The reward, and the parts of it that are earned at steps."""
        weights = self._weights_for(item)
        for gate in self._config.gates:
            if gate.scorer in weights and components[gate.scorer] < gate.at_least:
                return gate.otherwise, []
        total = 0.0
        placed: list[StepReward] = []
        for name, weight in weights.items():
            outcome = outcomes[name]
            if self._scorers[name].place_steps and isinstance(outcome, Steps):
                parts = [weight * self._counted(name, step) for step in outcome.steps]
                placed += map(StepReward, outcome.ends, parts)
                total += math.fsum(parts)
            else:
                total += weight * self._counted(name, components[name])
        return (_clipped(total, self._config.clip) if math.isfinite(total) else total), placed

    def _counted(self, name: str, component: float) -> float:
        """What enters the sum, before its weight."""
        table = self._scorers[name]
        if table.threshold is not None:
            return float(component >= table.threshold)
        return _clipped(component, table.clip)

    def _weights_for(self, item: ScoreItem) -> Mapping[str, float]:
        if not self._config.datasets:
            return self.weights
        dataset = item.metadata.get(self._config.dataset_key)
        if isinstance(dataset, str):
            return self._config.datasets.get(dataset, self.weights)
        return self.weights


def _value(outcome: float | Steps) -> float:
    return outcome.value if isinstance(outcome, Steps) else outcome


def _misplaced(outcome: float | Steps, item: ScoreItem) -> str | None:
    """Why its steps cannot be placed in the item's response."""
    if not isinstance(outcome, Steps) or len(outcome.ends) != len(outcome.steps):
        return "has place_steps, but does not say where the steps of a response end"
    if not all(map(math.isfinite, outcome.steps)):
        return f"gave the steps {list(outcome.steps)}"
    if not all(0 <= end <= len(item.response) for end in outcome.ends):
        return f"gave the ends {list(outcome.ends)} of steps in {len(item.response)} characters"
    return None


def _number(outcome: Outcome) -> float | None:
    """The finite number of an outcome, if it has one."""
    if isinstance(outcome, Failure):
        return None
    value = _value(outcome)
    return value if math.isfinite(value) else None


def _clipped(value: float, clip: Clip | None) -> float:
    return value if clip is None else min(max(value, clip[0]), clip[1])
