"""The `rollstream` command as a person calls it."""

from pathlib import Path

import pytest

from services.console import runs
from shared.stream import Streams
from tests.console.looking import Look, call, save_run, url_of


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(runs.URL_VARIABLE, raising=False)
    return tmp_path


@pytest.fixture
def run_folder(here: Path, streams: Streams) -> Path:
    """The folder of the run that `streams` belongs to, which is the newest in the working folder."""
    return here / save_run(streams.run, url_of(streams))


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Look:
    """Calls the command, which must succeed, and returns what it prints."""
    monkeypatch.setenv("COLUMNS", "200")

    def look(*arguments: object) -> str:
        assert call(monkeypatch, *arguments) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    return look


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Look:
    """Calls the command, which must fail, and returns its one sentence."""

    def look(*arguments: object) -> str:
        assert call(monkeypatch, *arguments) == 2
        output = capsys.readouterr()
        assert not output.out and output.err.startswith("error: ") and output.err.count("\n") == 1
        return output.err

    return look
