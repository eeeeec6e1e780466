"""What a run reached, in one file."""

import json
from collections import Counter
from pathlib import Path

from services.learner.report import Report

STEP = {
    "logprob_gap/mean": 0.1, "logprob_gap/max": 0.5, "val/ratio_first": 1.0, "val/ratio_first_epoch": 1.0,
    "staleness/max": 1.0, "tokens/completion": 30.0, "tokens/trained": 80.0, "time/step": 2.0,
    "steps/skipped": 0.0,
}  # fmt: skip
BEFORE = {
    "eval/heldout/greedy/accuracy": 0.25, "eval/heldout/greedy/length": 9.0, "eval/heldout/missing": 1,
    "eval/heldout/sampled/pass@4": 0.5, "eval/gsm8k/greedy/accuracy": 0.125, "eval/gsm8k/missing": 2,
}  # fmt: skip
AFTER = {"eval/heldout/greedy/accuracy": 0.75, "eval/heldout/missing": 0, "eval/gsm8k/missing": 0}


def test_heldout_figures_are_by_dataset_and_survive_a_resume(tmp_path: Path) -> None:
    first = Report(tmp_path / "first.json", "first", seed=3, prompts_too_long=2)
    first.add_heldout("before", BEFORE)
    first.add_step(STEP)
    resumed = Report(tmp_path / "report.json", "again", seed=3, prompts_too_long=2)
    resumed.restore(json.loads(json.dumps(first.state())))
    resumed.add_step(STEP | {"time/step": 4.0, "val/ratio_first_epoch": 1.5})
    resumed.add_heldout("after", AFTER)
    resumed.write(Counter(issued=8, trained=8))
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["heldout"] == {
        "greedy": {"before": 0.25, "after": 0.75},
        "sampled pass@4": {"before": 0.5},
        "gsm8k greedy": {"before": 0.125},
    }
    assert report["run"] == "again" and report["heldout_missing"] == 3 and report["steps"] == 2
    assert report["ratio_first_epoch"] == {"mean": 1.25, "min": 1.0, "max": 1.5}
    assert report["seconds"]["step_median"] == 3.0 and report["tokens_generated"] == 60
