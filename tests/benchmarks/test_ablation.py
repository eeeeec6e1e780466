"""The variants of the ablation, and the table over seeds."""

import json
import os
from pathlib import Path

import pytest

from benchmarks import ablation, pipeline
from services.learner.config.learner import LearnerSettings
from shared.config import load_settings


@pytest.mark.parametrize("name", ablation.read_variants(ablation.VARIANTS))
def test_each_variant_is_a_valid_run(name: str, tmp_path: Path) -> None:
    overrides = ablation.read_variants(ablation.VARIANTS)[name]
    words = [
        f"--{key}={pipeline.text(ablation.fill(value, tmp_path / 'ptx.jsonl'))}"
        for key, value in overrides.items()
    ]
    config = load_settings(LearnerSettings, ablation.CONFIG, {}, words).learner
    assert config.steps == 20 and config.groups_per_step * config.completions_per_prompt == 256
    assert config.has_critic == (config.advantage_estimator == "gae")


def test_every_variant_differs_from_every_other() -> None:
    variants = ablation.read_variants(ablation.VARIANTS)
    configs = [json.dumps(overrides, sort_keys=True) for overrides in variants.values()]
    assert len(set(configs)) == len(configs) >= 12


def test_the_ptx_file_holds_solutions_of_training_problems(tmp_path: Path) -> None:
    rows = pipeline.rows(ablation.write_ptx(tmp_path / "ptx.jsonl"))
    assert len(rows) == ablation.PTX_ROWS
    question, solution = rows[0]["messages"]
    assert (question["role"], solution["role"]) == ("user", "assistant")
    assert solution["content"].endswith("</answer>")


def row(variant: str, seed: int, sampled: float) -> ablation.Row:
    heldout = {"greedy": {"before": 0.5, "after": 0.8}, "sampled": {"before": 0.4, "after": sampled}}
    return {"variant": variant, "seed": seed, "heldout": heldout, "kl": 0.5, "step_seconds": 2.0}


def test_the_table_compares_over_the_seeds_that_both_variants_have() -> None:
    rows = [row("gae", 0, 0.6), row("gae", 1, 0.8), row("grpo", 1, 0.7), row("grpo", 2, 0.1)]
    lines = ablation.table(rows, ["gae", "grpo", "rloo"]).splitlines()
    assert len(lines) == 4
    assert "| gae | 0 1 | 0.500 ± 0.000 | 0.800 ± 0.000 | 0.700 ± 0.141 |  |" in lines[2]
    assert "| -0.100 |" in lines[3]


def test_runs_are_not_overridden_by_the_environment_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLSTREAM_LEARNER__KL_COEF", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    environment = pipeline.environment()
    assert "ROLLSTREAM_LEARNER__KL_COEF" not in environment and "OMP_NUM_THREADS" not in environment
    assert environment["PATH"] == os.environ["PATH"]
