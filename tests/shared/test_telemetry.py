"""Files of JSON lines."""

import json
from pathlib import Path

from shared.telemetry import JsonLines, keep_lines


def test_rows_are_on_disk_as_soon_as_they_are_written(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "deep" / "m.jsonl")
    lines.write({"step": 1, "text": "line\u2028separator"})
    text = (tmp_path / "deep" / "m.jsonl").read_text(encoding="utf-8")
    row = json.loads(text)
    assert row["text"] == "line\u2028separator" and row["at"] > 0
    lines.close()


def test_undone_rows_are_taken_out(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text("".join(json.dumps({"step": step}) + "\n" for step in range(5)))
    keep_lines(path, lambda row: row["step"] <= 2)
    assert path.read_text() == "".join(json.dumps({"step": step}) + "\n" for step in range(3))
    keep_lines(tmp_path / "nowhere.jsonl", lambda row: True)
