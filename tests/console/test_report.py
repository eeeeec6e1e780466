"""The report completed, the tables and the plot."""

import json
import time
from pathlib import Path

import pytest
from rich.console import Console

from services.console import report
from services.console.run import conclude


def write_rows(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def answer(question: str, reward: float, mode: str = "greedy") -> dict[str, object]:
    text = f"<answer>[b]{reward:g}[/b]</answer>"
    return {"prompt": question, "completion": text, "reward": reward, "ground_truth": "19", "mode": mode}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """What a learner leaves behind."""
    (tmp_path / "report.json").write_text(
        json.dumps(
            {
                "steps": 2,
                "seed": 1,
                "heldout": {"greedy": {"before": 0.6, "after": 0.9}, "sampled": {"before": 0.4}},
                "seconds": {"train": 33.0},
            }
        )
    )
    questions = ("same?", "better?", "worse?", "again?")
    write_rows(
        tmp_path / "completions" / "heldout-000000.jsonl",
        [answer(q, r) for q, r in zip(questions, (10, 1, 10, 10), strict=True)]
        + [answer("same?", 0, "sampled")],
    )
    write_rows(
        tmp_path / "completions" / "heldout-000002.jsonl",
        [answer(q, r) for q, r in zip(questions, (10, 10, 1, 10), strict=True)],
    )
    write_rows(
        tmp_path / "metrics.jsonl",
        [
            {"step": 0, "eval/heldout/greedy/accuracy": 0.6},
            {"step": 1, "reward/mean": 5.0},
            {"step": 2, "reward/mean": 6.0},
            {"step": 2, "eval/heldout/greedy/accuracy": 0.9, "eval/heldout/sampled/accuracy": 0.5},
        ],
    )
    (tmp_path / "checkpoints" / "step-000002" / "policy").mkdir(parents=True)
    return tmp_path


def printed(view: object) -> str:
    console = Console(width=120)
    with console.capture() as captured:
        console.print(view)
    return captured.get()


def test_the_report_gains_times_and_versions_and_keeps_the_learners_part(run: Path) -> None:
    report.complete(run, {"setup": 1.23, "warm_start": 60.0}, redis_version="6.2.14")
    facts = json.loads((run / "report.json").read_text())
    assert facts["seconds"] == {"train": 33.0, "setup": 1.2, "warm_start": 60.0}
    assert facts["heldout"]["greedy"] == {"before": 0.6, "after": 0.9}
    assert facts["versions"]["redis-server"] == "6.2.14"
    assert facts["versions"]["torch"].startswith("2.") and "python" in facts["versions"]


def test_a_missing_report_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"left no report at .*report\.json"):
        report.complete(tmp_path, {}, redis_version="7")


def test_accuracy_before_and_after_is_shown_only_where_both_are_known(run: Path) -> None:
    text = printed(report.before_after_table(json.loads((run / "report.json").read_text())))
    assert "greedy" in text and "+0.300" in text
    assert "sampled" not in text


def test_sample_completions_begin_with_those_whose_reward_changed(run: Path) -> None:
    table = report.samples_table(run, last_step=2)
    assert table and table.row_count == 3
    text = printed(table)
    assert text.index("better?") < text.index("worse?") < text.index("same?")
    assert "<answer>[b]10[/b]</answer>" in text, "text of the model is no markup"


def test_line_separators_inside_a_completion_do_not_end_its_row(run: Path) -> None:
    odd = "one\u2028two\u2029three\x85four"
    for step in (0, 2):
        row = answer("odd?", 10) | {"completion": odd}
        write_rows(run / "completions" / f"heldout-{step:06d}.jsonl", [row, answer("plain?", 1)])
    table = report.samples_table(run, last_step=2)
    assert table and table.row_count == 2


def test_no_samples_are_shown_where_none_were_recorded(tmp_path: Path) -> None:
    assert report.samples_table(tmp_path, last_step=2) is None


def test_the_plot_is_a_picture(run: Path) -> None:
    path = report.plot(run)
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000


def test_the_conclusion_names_the_files_and_how_to_serve_the_model(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report.complete(run, {"setup": 20.0}, redis_version="7")
    conclude(run, started=time.monotonic() - 100.0)
    output = capsys.readouterr().out
    assert f"vllm serve {run}/checkpoints/step-000002/policy" in output
    assert f"{run}/progress.png" in output and "2 steps; train 33 s, setup 20 s, total 12" in output
    seconds = json.loads((run / "report.json").read_text())["seconds"]
    assert 120.0 <= seconds["total"] < 130.0, "set-up, and all since the command began"
