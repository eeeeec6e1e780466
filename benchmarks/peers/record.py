"""What one contender's run is worth: seconds per iteration and phase, accuracy against training seconds.

Nothing but the standard library: this also runs in the peer's own environment.
"""

import json
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Iteration:
    seconds: float
    """From the end of the one before, or of the evaluation between them, to the end of this one."""
    phases: dict[str, float]
    hidden_work: bool = False
    """Part of its work was done while an evaluation ran, so its seconds say too little."""


@dataclass
class Accuracy:
    iteration: int
    """Iterations done before it was taken."""
    greedy: float
    sampled: float


@dataclass
class Record:
    contender: str
    seed: int
    settings: dict[str, Any]
    iterations: list[Iteration] = field(default_factory=list)
    accuracy: list[Accuracy] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        partial.replace(path)

    @classmethod
    def read(cls, path: Path) -> "Record":
        table = json.loads(path.read_text(encoding="utf-8"))
        return cls(
            table["contender"],
            table["seed"],
            table["settings"],
            [Iteration(**row) for row in table["iterations"]],
            [Accuracy(**row) for row in table["accuracy"]],
        )

    @property
    def measured(self) -> list[Iteration]:
        """Those whose seconds say all. The first is not among them: it warms up."""
        return [iteration for iteration in self.iterations[1:] if not iteration.hidden_work]

    @property
    def seconds(self) -> float:
        """Per iteration, median."""
        return statistics.median(iteration.seconds for iteration in self.measured)

    @property
    def phases(self) -> dict[str, float]:
        """Median seconds of each phase."""
        names = self.iterations[0].phases
        return {
            name: statistics.median(iteration.phases[name] for iteration in self.measured) for name in names
        }

    @property
    def training_seconds(self) -> list[float]:
        """After each iteration, all iterations so far together; one with hidden work counts as the median."""
        total, totals = 0.0, []
        for iteration in self.iterations:
            total += self.seconds if iteration.hidden_work else iteration.seconds
            totals.append(total)
        return totals

    def seconds_to(self, greedy: float) -> float | None:
        """Training seconds at the first evaluation that reached this greedy accuracy; None if none did."""
        for accuracy in self.accuracy:
            if accuracy.greedy >= greedy:
                return self.training_seconds[accuracy.iteration - 1] if accuracy.iteration else 0.0
        return None
