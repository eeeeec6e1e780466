"""Servers and replicas that come, hang, go wrong and go in a run: nothing is lost, nobody waits for them."""

import re
import signal
import time
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families
from safetensors.torch import load_file

from shared.weights import WeightStatus
from tests.chaos.audit import audit
from tests.chaos.conftest import Begin
from tests.chaos.engine import TOKEN_SECONDS
from tests.chaos.pipeline import Pipeline
from tests.chaos.workspace import SCORE_SECONDS
from tests.conftest import free_port
from tests.rollout.server import make_update

ENDLESS = 10_000
OPERATIONS = Path(__file__).parents[2] / "docs/operations.md"


def ids(pipeline: Pipeline, service: str = "rollout") -> set[str]:
    return {worker["id"] for worker in pipeline.workers(service)}


def id_of(pipeline: Pipeline, name: str) -> str:
    service = name.rstrip("0123456789")
    (found,) = [w["id"] for w in pipeline.workers(service) if w["pid"] == pipeline.process(name).pid]
    return str(found)


def url_of(pipeline: Pipeline, name: str) -> str:
    (found,) = [w["url"] for w in pipeline.workers("rollout") if w["pid"] == pipeline.process(name).pid]
    return str(found)


def delivered(pipeline: Pipeline, service: str = "rollout") -> dict[str, int]:
    return {worker["id"]: worker["groups_delivered"] for worker in pipeline.workers(service)}


def everyone_works(pipeline: Pipeline, service: str, count: int) -> None:
    """Wait for so many processes of a service, and for each of them to have delivered something."""
    pipeline.wait(lambda: len(ids(pipeline, service)) == count, f"{count} {service} processes")
    everyone = ids(pipeline, service)
    pipeline.wait(lambda: all(delivered(pipeline, service).get(id, 0) > 0 for id in everyone), "work for all")


def retire(pipeline: Pipeline, name: str, how: signal.Signals) -> int:
    """End a server for good; its exit status."""
    process = pipeline._processes.pop(name)
    process.strike(how)
    pipeline.wait(lambda: process.status is not None, f"the end of {name}")
    assert process.status is not None
    return process.status


def end_soon(pipeline: Pipeline) -> int:
    """Put another learner in the place of one that would go on for ever; how many steps the run will have."""
    learner = pipeline.process("learner")
    learner.strike(signal.SIGKILL)
    while learner.status is None:
        time.sleep(0.01)
    steps = pipeline.step + 3
    pipeline.learner_settings["steps"] = steps
    return steps


def test_rolling_from_one_to_four_to_two_servers_loses_nothing(workspace: Path, tmp_path: Path) -> None:
    port = free_port()
    slowly = {f"rollout{number}": {TOKEN_SECONDS: "0.03"} for number in range(4)}
    pipeline = Pipeline(tmp_path / "run", workspace, variables=slowly, steps=ENDLESS, max_staleness=1,
                        checkpoint_every=10, metrics_port=port)  # fmt: skip
    with pipeline:
        bearer = {"Authorization": f"Bearer {pipeline._token}"}
        pipeline.wait_for_step(2)

        # 1 -> 4: newcomers get the current weights, and answer prompts.
        for name in ("rollout1", "rollout2", "rollout3"):
            pipeline.start(name)
        everyone_works(pipeline, "rollout", 4)

        # One is made to serve something else as the current version: it is noticed and put right.
        wrong = url_of(pipeline, "rollout1")
        with httpx.Client(base_url=wrong, headers=bearer) as client:
            status = WeightStatus.model_validate_json(client.get("/v1/weights").content)
            assert status.version is not None and status.learner_epoch is not None
            tensors = load_file(workspace / "model/model.safetensors")
            manifest, parts = make_update(tensors, status.version + 1, status.learner_epoch)
            base = f"/v1/weights/{manifest.version}"
            client.post(base, content=manifest.model_dump_json())
            for number, part in enumerate(parts):
                client.put(f"{base}/parts/{number}", content=part)
            client.post(f"{base}/commit")  # refused if the learner's own push has come in between

            def repaired() -> bool:
                now = WeightStatus.model_validate_json(client.get("/v1/weights").content)
                return now.digest != manifest.digest and now.version is not None

            pipeline.wait(repaired, "the repair of a server that was given other weights")

        # One hangs: the learner and the others go on.
        hung, before = id_of(pipeline, "rollout2"), pipeline.step
        pipeline.process("rollout2").strike(signal.SIGSTOP)
        pipeline.wait(lambda: hung not in ids(pipeline), "the end of its lease")
        pipeline.wait_for_step(before + 5, seconds=15)
        pipeline.process("rollout2").strike(signal.SIGCONT)
        pipeline.wait(lambda: hung in ids(pipeline), "its return")

        # 4 -> 2: one leaves politely, one does not.
        leaver = id_of(pipeline, "rollout1")
        assert retire(pipeline, "rollout1", signal.SIGTERM) == 0
        assert not pipeline.streams.pending("prompts", leaver), "it handed its prompts back"
        assert retire(pipeline, "rollout3", signal.SIGKILL) == -signal.SIGKILL

        page = httpx.get(f"http://127.0.0.1:{port}/metrics", headers=bearer).text
        steps = end_soon(pipeline)
        pipeline.finish()
        audit(pipeline, steps)
        assert pipeline.deaths == [("learner", -signal.SIGKILL)], "no server died of what was done to another"
    shown = {f.name for f in text_string_to_metric_families(page) if f.name.startswith("rollstream_")}
    assert shown == set(re.findall(r"`(rollstream_learner_\w+)`", OPERATIONS.read_text()))


def test_rolling_from_one_to_three_to_one_reward_replicas_loses_nothing(begin: Begin) -> None:
    slowly = {f"reward{number or ''}": {SCORE_SECONDS: "0.05"} for number in range(3)}
    pipeline = begin(variables=slowly, steps=ENDLESS, max_staleness=1, checkpoint_every=10)
    pipeline.wait_for_step(1)
    for name in ("reward1", "reward2"):
        pipeline.start(name)
    everyone_works(pipeline, "reward", 3)
    leaver, victim = id_of(pipeline, "reward1"), id_of(pipeline, "reward2")
    pipeline.wait(lambda: pipeline.streams.pending("rollouts", leaver), "groups in hand")
    assert retire(pipeline, "reward1", signal.SIGTERM) == 0
    assert not pipeline.streams.pending("rollouts", leaver), "it handed its groups back"
    pipeline.wait(lambda: pipeline.streams.pending("rollouts", victim), "groups in hand")
    assert retire(pipeline, "reward2", signal.SIGKILL) == -signal.SIGKILL
    steps = end_soon(pipeline)
    pipeline.finish()
    assert audit(pipeline, steps) == {}
    assert pipeline.deaths == [("learner", -signal.SIGKILL)]
