"""A learner of two ranks: one of them dies, or has a gradient that is none."""

import json
import os
import signal
from pathlib import Path

import pytest

from services.learner import checkpoint
from tests.chaos.audit import audit, weights_of
from tests.chaos.conftest import Begin
from tests.chaos.process import Command
from tests.chaos.strikes import Strike


def policy_digests(run: Path) -> list[str]:
    """Of every checkpoint, in order of the steps."""
    found = []
    for folder in sorted((run / "checkpoints").glob("step-*")):
        files = json.loads((folder / "manifest.json").read_text())["files"]
        found.append(files["policy/model.safetensors"] + files["critic/model.safetensors"])
    return found


def test_a_gradient_that_is_no_number_on_one_rank_changes_no_weight_on_any(begin: Begin) -> None:
    strike = Strike("services.learner.minibatch:_step", "before", 3, "nan_gradient", rank=1)
    pipeline = begin(
        strikes={"learner": [strike]},
        ranks=2, steps=5, epochs=1, minibatches=1, checkpoint_every=1, keep_checkpoints=9,
    )  # fmt: skip
    pipeline.finish()
    assert audit(pipeline, 5) == {}
    rows = [json.loads(row) for row in (pipeline.run / "metrics.jsonl").read_bytes().splitlines()]
    assert [row["steps/skipped"] for row in rows] == [0, 0, 1, 0, 0]
    first, second, third, fourth, fifth = policy_digests(pipeline.run)
    assert second == third and len({first, second, fourth, fifth}) == 4
    assert checkpoint.newest(pipeline.run / "checkpoints")


@pytest.mark.chaos_long
@pytest.mark.timeout(800)
def test_a_rank_killed_while_the_others_wait_for_it_costs_only_time(begin: Begin) -> None:
    left_in_peace = begin(ranks=2, steps=8)
    left_in_peace.finish(250)
    assert audit(left_in_peace, 8) == {}
    strike = Strike("services.learner.minibatch:_step", "before", 9, "kill", rank=1)
    pipeline = begin(ranks=2, steps=8, strikes={"learner": [strike]})
    pipeline.failures_allowed = 2
    pipeline.wait_for_step(6, seconds=250)
    learner = pipeline.process("learner")
    assert isinstance(learner, Command)
    os.kill(learner.rank(0), signal.SIGKILL)
    pipeline.finish(250)
    assert audit(pipeline, 8) == {}
    assert [name for name, _ in pipeline.deaths] == ["learner", "learner"]
    assert weights_of(pipeline.run) == weights_of(left_in_peace.run)
