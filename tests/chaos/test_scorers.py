"""Scorers that hang, fail or give what is no number: no reward is ever invented for them."""

import json
import shutil
from pathlib import Path

import pytest

from shared.experience import Prompt
from tests.chaos.audit import audit
from tests.chaos.history import issued_prompts
from tests.chaos.pipeline import RUN, Pipeline

SCORER = """
import hashlib
import time


def trouble(prompt):
    return hashlib.sha256(prompt.encode()).digest()[0] % 8


def score(item, parameters):
    kind = trouble(item.prompt)
    if kind == 0:
        while True:
            pass
    if kind == 1:
        raise RuntimeError("out of order")
    if kind == 2:
        return float("nan")
    return (sum(map(ord, item.response)) % 97) / 97
"""
CAUSES = {0: "took longer", 1: "out of order", 2: "nan"}


@pytest.fixture
def troubled(workspace: Path, tmp_path: Path) -> Path:
    """The workspace with a scorer that fails for some prompts, each time."""
    folder = tmp_path / "workspace"
    shutil.copytree(workspace, folder)
    (folder / "scorer.py").write_text(SCORER)
    config = (folder / "run.toml").read_text().replace('run_in = "service"', "deadline_seconds = 0.6")
    (folder / "run.toml").write_text(config + "\n[reward.pool]\nworkers = 2\n")
    return folder


def trouble(prompt: Prompt, scorer: Path) -> int:
    names: dict[str, object] = {}
    exec(compile(scorer.read_text(), str(scorer), "exec"), names)  # noqa: S102 - the test's own text
    found = names["trouble"](prompt.text)  # type: ignore[operator]
    assert isinstance(found, int)
    return found


def test_groups_that_cannot_be_scored_are_buried_with_their_cause_and_no_reward_is_invented(
    troubled: Path, tmp_path: Path
) -> None:
    with Pipeline(tmp_path / "run", troubled, max_staleness=1, steps=6) as pipeline:
        pipeline.finish()
        dead = audit(pipeline, 6)
        assert pipeline.deaths == []
    kinds = {
        id: trouble(prompt, troubled / "scorer.py")
        for id, prompt in issued_prompts(pipeline.folder, RUN).items()
    }
    assert dead.keys() == {id for id, kind in kinds.items() if kind in CAUSES}
    assert {kinds[id] for id in dead} == CAUSES.keys(), "the prompts do not show every kind of trouble"
    for id, cause in dead.items():
        assert CAUSES[kinds[id]] in cause.lower(), cause
    for path in (pipeline.run / "completions").glob("step-*.jsonl"):
        for row in map(json.loads, path.read_bytes().splitlines()):
            assert row["reward"] == pytest.approx((sum(map(ord, row["completion"])) % 97) / 97)
