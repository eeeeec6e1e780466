"""Sample completions of a run as a table: what the learner wrote to `completions/*.jsonl`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

CHARACTERS = 2000
"""A longer text is shown without its middle."""

FILES = "completions/*.jsonl"

Row = Mapping[str, Any]


def read_completions(run: Path, step: int | None, heldout: bool) -> tuple[int, list[dict[str, Any]]]:
    """The step, and the rows of its file; the newest step if none is given.

    Raises:
        ValueError: there is no such file; the message tells the steps there are.
    """
    kind = "heldout" if heldout else "step"
    files = {int(path.stem.split("-")[1]): path for path in (run / "completions").glob(f"{kind}-*.jsonl")}
    if not files:
        other = "without" if heldout else "with"
        raise ValueError(f"{run} has no {kind} completions; try {other} --heldout")
    chosen = max(files) if step is None else step
    if chosen not in files:
        known = ", ".join(map(str, sorted(files)))
        raise ValueError(f"{run} has no {kind} completions of step {chosen}; there are those of {known}")
    with files[chosen].open(encoding="utf-8") as lines:  # only a newline ends a row, not U+2028 in a text
        return chosen, [json.loads(line) for line in lines]


def completions_table(title: str, rows: Sequence[Row], count: int, best_first: bool | None) -> Table:
    """The first `count` rows, or those with the highest or the lowest rewards."""
    if best_first is not None:
        rows = sorted(rows, key=lambda row: float(row["reward"]), reverse=best_first)
    rewards = [float(row["reward"]) for row in rows]
    mean = f", mean reward {sum(rewards) / len(rewards):.3f}" if rewards else ""
    shown = f"{min(count, len(rows))} of {len(rows)} completions{mean}"
    table = Table(title=f"{title}: {shown}", title_justify="left", show_lines=True)
    for name in ("prompt", "completion", "truth", "reward"):
        table.add_column(name, overflow="fold", ratio={"prompt": 3, "completion": 4}.get(name))
    for row in rows[:count]:
        truth = "" if row["ground_truth"] is None else str(row["ground_truth"])
        table.add_row(
            Text(_cut(row["prompt"])), Text(_cut(row["completion"])), Text(_cut(truth)), _reward(row)
        )
    return table


def _reward(row: Row) -> Text:
    """The reward, then what each scorer gave where that says more."""
    components = [f"{name} {value:g}" for name, value in row["components"].items()]
    facts = [f"{row['tokens']} tokens", row["finish_reason"]]
    if row["mode"] != "train":
        facts.insert(0, f"{row['dataset']} {row['mode']}")
    facts.append(row["id"])
    style = "bold green" if row["reward"] > 0 else "bold yellow"
    return Text.assemble(
        (f"{row['reward']:g}", style), "\n", "\n".join(components), ("\n" + "\n".join(facts), "dim")
    )


def _cut(text: str) -> str:
    half = CHARACTERS // 2
    return text if len(text) <= CHARACTERS else f"{text[:half]}\n ... \n{text[-half:]}"
