"""Log lines, and files of JSON lines."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.telemetry import JsonLines, keep_lines, set_up_logging

FORGED = "no\n12:00:00 INFO learner all is well\r\x1b[2K\u2028\ud800 übel"


@pytest.fixture
def restored() -> Iterator[None]:
    """The logger as it was."""
    logger = logging.getLogger("rollstream")
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.level, logger.propagate = before


def tell_twice(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLSTREAM_LOG", form)
    log = set_up_logging("reward")
    log.warning("id=%s is dead: %s", "abc", FORGED)
    try:
        raise RuntimeError(FORGED)
    except RuntimeError:
        log.exception("it failed")


def test_a_cause_cannot_forge_log_lines(
    restored: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tell_twice("text", monkeypatch)
    first, second, *traceback = capsys.readouterr().err.splitlines()
    forged = r"no\n12:00:00 INFO learner all is well\r\x1b[2K\u2028\ud800 übel"
    assert first[9:] == f"WARNING reward id=abc is dead: {forged}" and second.endswith(
        "ERROR reward it failed"
    )
    assert len(traceback) > 3 and all(line.startswith("    ") for line in traceback)


def test_a_log_in_json_has_one_object_per_event(
    restored: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tell_twice("json", monkeypatch)
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert first.pop("at")[10:11] == "T"
    text = f"id=abc is dead: {FORGED}"
    assert first == {"level": "WARNING", "service": "reward", "id": "abc", "text": text}
    assert "id" not in second and "RuntimeError: no" in second["traceback"]


def test_another_form_of_log_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROLLSTREAM_LOG", "xml")
    with pytest.raises(SystemExit):
        set_up_logging("reward")
    assert "'xml'; it may be 'text' or 'json'" in capsys.readouterr().err


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
