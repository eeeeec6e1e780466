"""A run's saved configuration, and the `rollstream` command called in the folder it lies in."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from services.console import cli
from shared.stream import Streams

Look = Callable[..., str]


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """The exit status of `rollstream` with these arguments."""
    monkeypatch.setattr(sys, "argv", ["rollstream", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    code = ended.value.code
    return code if isinstance(code, int) else 0


def url_of(streams: Streams) -> str:
    return f"redis://127.0.0.1:{streams.client.connection_pool.connection_kwargs['port']}/0"


def save_run(name: str, url: str) -> Path:
    folder = Path("runs") / name
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(
        f"[run]\nname = '{name}'\n[model]\npath = 'm'\n[redis]\nurl = '{url}'\n"
        "[learner]\nsteps = 3\nprompts = 'p.jsonl'\n"
    )
    return folder


def save_checkpoint(folder: Path, step: int) -> Path:
    """The manifest of a checkpoint, which the learner writes last."""
    manifest = folder / "checkpoints" / f"step-{step:06d}" / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text("{}")
    return manifest


def save_report(folder: Path, steps: int = 13) -> None:
    """What a learner leaves at its end, as far as people are told of it."""
    heldout = {"greedy": {"before": 0.6494, "after": 0.9111}, "sampled": {"after": 0.5}}
    counts = {"steps": steps, "groups_trained": 3328, "groups_dead": 2}
    (folder / "report.json").write_text(json.dumps({**counts, "heldout": heldout}))
