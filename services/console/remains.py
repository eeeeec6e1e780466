"""What is left on disk of a run that no service works for: what it reached, and how to go on."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from services.console.resolved import CONFIG

REPORT = "report.json"
MANIFEST = "manifest.json"
"""What the learner writes into a checkpoint last."""


def remains(folder: Path) -> list[str]:
    """Lines about a run that has ended or was stopped; none if its folder tells neither."""
    config = folder / CONFIG
    up = f"rollstream up --config {config if config.exists() else 'FILE'}"
    report, newest = read_report(folder), _newest_checkpoint(folder)
    if report is None:
        return [f"the run was stopped: go on from step {newest} with `{up} --resume`"] if newest else []
    steps = report["steps"]
    held_out = [
        f"held-out {name}: {share['before']:.3f} before, {share['after']:.3f} after"
        for name, share in report["heldout"].items()
        if {"before", "after"} <= share.keys()
    ]
    return [
        f"the run has ended after {steps} steps; groups trained on: {report['groups_trained']:,}, "
        f"dead: {report['groups_dead']:,}",
        *held_out,
        f"report: {folder / REPORT}",
        f"start the next with `{up} --run.name NAME{_from_the_start(config)}`",
        f"train this one on with `{up} --resume --learner.steps {2 * steps}`",
    ]


def read_report(folder: Path) -> dict[str, Any] | None:
    """What the learner wrote at the end. None before, and if the run went on to more steps and was stopped.

    Raises:
    ValueError: the file is damaged.
    """
    path = folder / REPORT
    if not path.exists():
        return None
    try:
        report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is no JSON ({error}): it is damaged") from error
    return report if _newest_checkpoint(folder) <= report["steps"] else None


def _newest_checkpoint(folder: Path) -> int:
    """Its step; 0 if there is none. A folder without manifest is the rest of one, of no use to --resume."""
    found = folder.glob(f"checkpoints/step-*/{MANIFEST}")
    names = (re.fullmatch(r"step-(\d+)", path.parent.name) for path in found)
    return max((int(name[1]) for name in names if name), default=0)


def _from_the_start(config: Path) -> str:
    """What a new run needs whose configuration is that of one that was resumed."""
    tables = tomllib.loads(config.read_text(encoding="utf-8")) if config.exists() else {}
    return " --learner.resume false" if tables.get("learner", {}).get("resume") else ""
