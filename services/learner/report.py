"""`report.json`: what a run reached, in one file."""

import json
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared.heldout import solved_shares


class Report:
    """Collects a run's figures and writes them at its end. The launcher adds what only it knows."""

    def __init__(self, path: Path, run: str, seed: int, prompts_too_long: int) -> None:
        self._path = path
        self._run = run
        self._seed = seed
        self._prompts_too_long = prompts_too_long
        self._heldout: dict[str, dict[str, float]] = {}
        self._missing = 0
        self._steps: list[dict[str, float]] = []
        self._seconds_before = 0.0
        self._started = time.monotonic()

    def add_step(self, metrics: Mapping[str, float]) -> None:
        names = (
            "logprob_gap/mean",
            "logprob_gap/max",
            "val/ratio_first",
            "val/ratio_first_epoch",
            "staleness/max",
            "tokens/completion",
            "tokens/trained",
            "time/step",
            "steps/skipped",
        )
        self._steps.append({name: metrics[name] for name in names if name in metrics})

    @property
    def _seconds(self) -> float:
        """Of training, those before a resume counted in."""
        return self._seconds_before + time.monotonic() - self._started

    def add_heldout(self, when: str, metrics: Mapping[str, float]) -> None:
        self._missing += sum(int(value) for name, value in metrics.items() if name.endswith("/missing"))
        for name, share in solved_shares(metrics).items():
            self._heldout.setdefault(name, {})[when] = round(share, 4)

    def state(self) -> dict[str, Any]:
        return {
            "heldout": self._heldout,
            "missing": self._missing,
            "steps": self._steps,
            "seconds": self._seconds,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._heldout, self._steps = dict(state["heldout"]), list(state["steps"])
        self._missing, self._seconds_before = state["missing"], state["seconds"]

    def write(self, counts: Mapping[str, int]) -> None:
        def column(name: str) -> list[float]:
            return [step[name] for step in self._steps if name in step]

        def over_steps(name: str) -> dict[str, float]:
            """Empty where no step measured it, as while only the critic learns."""
            if not (values := column(name)):
                return {}
            return {"mean": statistics.fmean(values), "min": min(values), "max": max(values)}

        report = {
            "run": self._run,
            "seed": self._seed,
            "steps": len(self._steps),
            "heldout": self._heldout,
            "heldout_missing": self._missing,
            "logprob_gap": {
                "mean": statistics.fmean(column("logprob_gap/mean")),
                "max": max(column("logprob_gap/max")),
            },
            "ratio_first": over_steps("val/ratio_first"),
            "ratio_first_epoch": over_steps("val/ratio_first_epoch"),
            "staleness_max": max(column("staleness/max")),
            "steps_skipped": sum(column("steps/skipped")),
            "groups_issued": counts["issued"],
            "groups_trained": counts["trained"],
            "groups_dead": counts["dead"],
            "duplicates_dropped": counts["duplicates"],
            "prompts_too_long": self._prompts_too_long,
            "tokens_generated": int(sum(column("tokens/completion"))),
            "tokens_trained": int(sum(column("tokens/trained"))),
            "seconds": {
                "train": round(self._seconds, 1),
                "step_median": round(statistics.median(column("time/step")), 3),
            },
        }
        self._path.write_text(json.dumps(report, indent=2) + "\n")
