"""Sample completions for people: `completions/*.jsonl`, which `rollstream completions` shows."""

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
