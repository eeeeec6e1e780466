"""Sample completions as a table."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from services.console import completions
from tests.console.looking import call


def row(reward: float, text: str = "text", **changes: Any) -> dict[str, Any]:
    return {
        "id": "p12ab", "dataset": "train", "mode": "train", "prompt": "[b]How many?[/b]", "completion": text,
        "ground_truth": "19", "reward": reward, "components": {"gsm8k_reward_fn": reward}, "tokens": 7,
        "finish_reason": "stop",
    } | changes  # fmt: skip


def write(run: Path, name: str, rows: list[dict[str, Any]], at: int = 0) -> None:
    path = run / "completions" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows), encoding="utf-8")
    os.utime(path, (at, at))


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    runs = tmp_path / "runs"
    write(runs / "old", "step-000001.jsonl", [row(1.0, "old")], at=1)
    write(runs / "new", "step-000001.jsonl", [row(1.0, "first")], at=2)
    write(runs / "new", "step-000010.jsonl", [row(5.0, "middle"), row(10.0, "good"), row(0.0, "bad")], at=3)
    write(runs / "new", "heldout-000010.jsonl", [row(1.0, "asked", mode="greedy", dataset="gsm8k")], at=1)
    monkeypatch.chdir(tmp_path)
    return runs


def shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: object) -> str:
    monkeypatch.setenv("COLUMNS", "140")
    assert call(monkeypatch, "completions", *arguments) == 0
    return capsys.readouterr().out


def test_the_newest_step_of_the_newest_run_is_shown(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(capsys, monkeypatch)
    assert "new, step 10: 3 of 3 completions, mean reward 5.000" in text
    assert text.index("middle") < text.index("good") < text.index("bad")
    assert "gsm8k_reward_fn 10" in text and "19" in text and "7 tokens" in text
    assert "p12ab" in text, "the id, for `rollstream trace`"
    assert "[b]How many?[/b]" in text, "a prompt is no markup"


def test_completions_can_be_sorted_by_reward_and_counted(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(capsys, monkeypatch, "--best", "-n", 2)
    assert text.index("good") < text.index("middle") and "bad" not in text and "2 of 3" in text
    text = shown(capsys, monkeypatch, "--worst", "-n", 1)
    assert "bad" in text and "middle" not in text


def test_those_of_a_configured_run_are_found_in_its_folder(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("run.toml").write_text(f"[run]\nname = 'old'\ndir = '{runs}'\n[model]\npath = 'm'\n")
    assert "old, step 1" in shown(capsys, monkeypatch, "--config", "run.toml")


def test_a_run_a_step_and_the_heldout_completions_can_be_chosen(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "old" in shown(capsys, monkeypatch, "--run", "old")
    assert "old" in shown(capsys, monkeypatch, "--run", runs / "old")
    assert "first" in shown(capsys, monkeypatch, "--step", 1)
    text = shown(capsys, monkeypatch, "--heldout")
    assert "asked" in text and "gsm8k greedy" in text


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--run", "none"), "neither runs/none nor none has completions/*.jsonl"),
        (("--step", "7"), "no step completions of step 7; there are those of 1, 10"),
        (("--run", "old", "--heldout"), "try without --heldout"),
        (("--stepp", "7"), "option --stepp is unknown. Did you mean '--step'?"),
        (("--run.seed", "7"), "--run.seed was not expected: overrides go with --config"),
        (("--config", "none.toml"), "none.toml cannot be read"),
    ],
)
def test_what_is_not_there_is_told_with_what_is(
    arguments: tuple[str, ...],
    complaint: str,
    runs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(monkeypatch, "completions", *arguments) == 2
    assert complaint in capsys.readouterr().err


def test_a_very_long_text_is_shown_without_its_middle() -> None:
    long = "a" * 3000 + "MIDDLE" + "z" * 3000
    console = Console(width=200)
    with console.capture() as captured:
        console.print(completions.completions_table("run", [row(1.0, long)], 1, None))
    text = captured.get()
    assert "aaa" in text and "zzz" in text and "MIDDLE" not in text
