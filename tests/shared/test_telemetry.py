"""Files of JSON lines."""

import json
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    "tail", [b'{"step": 3, "te', '{"text": "ü'.encode()[:-1], b"\0" * 20, b'{"step": 1}']
)
def test_a_last_row_that_was_cut_off_is_taken_out_and_later_ones_get_lines_of_their_own(
    tmp_path: Path, tail: bytes
) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step": 1, "text": "\xc3\xbc"}\n' + tail)
    keep_lines(path, lambda row: row["step"] <= 2)
    lines = JsonLines(path)
    lines.write({"step": 2})
    lines.close()
    assert [json.loads(line)["step"] for line in path.read_bytes().splitlines()] == [1, 2]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a file that is a full disk")
def test_a_full_disk_is_told_with_what_to_do() -> None:
    lines = JsonLines(Path("/dev/full"))
    with pytest.raises(
        ValueError, match=r"/dev/full cannot be written: .*No space left.* Make room.*--resume"
    ):
        lines.write({"step": 1})
    lines.close()
