"""Completions for people: samples in `completions/*.jsonl`, which `rollstream completions` shows, and what
each scorer gave."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from shared.experience import Group
from shared.telemetry import JsonLines


def write_completions(path: Path, groups: Sequence[Group]) -> None:
    """One row for each completion. What a session before a restart wrote there is replaced."""
    path.unlink(missing_ok=True)
    rows = JsonLines(path)
    for group in groups:
        for completion in group.completions:
            rows.write(
                {
                    "id": group.prompt.id,
                    "dataset": group.prompt.metadata.get("dataset"),
                    "mode": group.prompt.metadata.get("evaluation", "train"),
                    "prompt": group.prompt.text,
                    "completion": completion.text,
                    "ground_truth": group.prompt.ground_truth,
                    "reward": completion.reward,
                    "components": completion.components,
                    "tokens": len(completion.token_ids),
                    "finish_reason": completion.finish_reason,
                }
            )
    rows.close()


def scorer_means(groups: Sequence[Group]) -> dict[str, float]:
    """`reward/scorer/<name>`: the mean of what each scorer gave to the completions it scored."""
    given: dict[str, list[float]] = {}
    for completion in (completion for group in groups for completion in group.completions):
        for name, value in completion.components.items():
            given.setdefault(name, []).append(value)
    return {f"reward/scorer/{name}": statistics.fmean(values) for name, values in given.items()}
