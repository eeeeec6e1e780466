"""`groups.jsonl`: every group trained on, in which step, and its way there. `rollstream trace` reads it."""

from collections.abc import Sequence
from pathlib import Path

from shared.entry import Entry, seconds_of
from shared.stream import CARRIED, MOMENTS
from shared.telemetry import JsonLines, keep_lines

_TOLD = CARRIED | {"id", "reward_mean"}


class TrainedGroups:
    """The file of one run. What was trained past the checkpoint that a learner goes on from is not in it."""

    def __init__(self, run: Path, step: int) -> None:
        path = run / "groups.jsonl"
        keep_lines(path, lambda row: row["step"] <= step)
        self._file = JsonLines(path)

    def write(self, step: int, entries: Sequence[Entry]) -> None:
        """One row for each entry of the experiences stream, with its readable fields."""
        for entry in entries:
            told = {name: value for name, value in entry.fields.items() if name in _TOLD}
            scored_at = MOMENTS["experiences"]
            self._file.write({"step": step, scored_at: f"{seconds_of(entry.entry_id):.3f}", **told})

    def close(self) -> None:
        self._file.close()
