"""The same failures with vLLM in the rollout servers."""

import json
import signal
from pathlib import Path

import pytest

from tests.chaos.audit import audit
from tests.chaos.pipeline import Pipeline
from tests.chaos.workspace import make_workspace

STEPS = 16


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = make_workspace(tmp_path / "workspace", hidden_size=64)
    config = (folder / "run.toml").read_text()
    options = '[rollout]\ndtype = "float32"\nenforce_eager = true\nkv_cache_gib = 0.25\n'
    (folder / "run.toml").write_text(config.replace("[rollout]\n", options))
    return folder


@pytest.mark.chaos_long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("max_staleness", [0, 2])
def test_killed_servers_and_learners_lose_and_repeat_nothing(
    workspace: Path, tmp_path: Path, max_staleness: int
) -> None:
    with Pipeline(
        tmp_path / "run", workspace, rollouts=2, vllm=True, steps=STEPS, max_staleness=max_staleness,
        rollout_timeout=240.0,
    ) as pipeline:  # fmt: skip
        pipeline.wait_for_step(2, seconds=240)
        pipeline.wait(lambda: len(pipeline.workers("rollout")) == 2, "the second server", seconds=120)
        for step, name, how in (
            (3, "rollout0", signal.SIGKILL),
            (6, "learner", signal.SIGKILL),
            (8, "rollout1", signal.SIGKILL),
            (10, "reward", signal.SIGKILL),
        ):
            pipeline.wait_for_step(step, seconds=120)
            pipeline.process(name).strike(how)
        pipeline.wait_for_step(12, seconds=120)
        pipeline.redis.kill()
        pipeline.redis.start()
        pipeline.finish(240)
        assert audit(pipeline, STEPS) == {}
        assert [status for _, status in pipeline.deaths] == [-9] * 4
    report = json.loads((pipeline.run / "report.json").read_text())
    assert report["staleness_max"] <= max_staleness
    if max_staleness == 0:
        assert report["logprob_gap"]["max"] < 1e-3, "a server answered with other weights than it said"
