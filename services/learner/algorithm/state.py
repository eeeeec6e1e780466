"""What the algorithm carries from one update to the next, beside weights and optimizers."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from services.learner.algorithm.rewards import RunningMoments


@dataclass(frozen=True)
class AlgorithmState:
    kl_coef: float
    score_moments: RunningMoments = field(default_factory=RunningMoments)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(state: Mapping[str, Any]) -> "AlgorithmState":
        return AlgorithmState(state["kl_coef"], RunningMoments(**state["score_moments"]))
