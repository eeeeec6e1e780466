"""Redis killed, emptied, robbed of a stream: a synchronous run must not show it."""

import signal
import time
from pathlib import Path

from tests.chaos.audit import audit, weights_of
from tests.chaos.conftest import Begin
from tests.chaos.pipeline import Pipeline


def test_a_killed_redis_that_comes_back_with_its_file_has_lost_nothing(
    begin: Begin, steps: int, undisturbed: dict[str, str]
) -> None:
    pipeline = begin(rollouts=2)
    for step, fsync in ((2, "everysec"), (5, "always"), (8, "everysec")):
        pipeline.wait_for_step(step)
        pipeline.redis.kill()
        pipeline.redis.start("--appendfsync", fsync)
    pipeline.finish()
    assert audit(pipeline, steps) == {}
    assert pipeline.deaths == [] and weights_of(pipeline.run) == undisturbed


def test_what_an_emptied_redis_has_lost_is_issued_again(
    begin: Begin, steps: int, undisturbed: dict[str, str]
) -> None:
    pipeline = begin()
    pipeline.wait_for_step(2)
    pipeline.client.flushall()
    for step, stream in ((3, "prompts"), (4, "rollouts"), (5, "experiences")):
        pipeline.wait_for_step(step)
        pipeline.client.delete(pipeline.streams.key(stream))
    pipeline.wait_for_step(7)
    pipeline.redis.kill()
    for file in pipeline.folder.glob("appendonly*"):
        file.rename(file.with_name(f"before-{file.name}"))  # the audit reads it
    pipeline.redis.start()
    pipeline.wait_for_step(9)
    pipeline.process("learner").strike(signal.SIGKILL)
    pipeline.client.flushall()
    pipeline.finish()
    assert audit(pipeline, steps) == {}
    assert pipeline.deaths == [("learner", -9)] and weights_of(pipeline.run) == undisturbed


def test_a_redis_that_comes_back_with_an_older_file_loses_nothing(
    begin: Begin, steps: int, undisturbed: dict[str, str]
) -> None:
    """As a replica does that was promoted before it had the newest writes."""
    pipeline = begin()
    for step in (3, 7):
        pipeline.wait_for_step(step - 1)
        file = pipeline.folder / "appendonly.aof"
        older = file.read_bytes()
        pipeline.wait_for_step(step)
        pipeline.redis.kill()
        file.rename(pipeline.folder / f"before-{step}.aof")
        file.write_bytes(older)
        pipeline.redis.start()
    pipeline.finish()
    assert audit(pipeline, steps) == {}
    assert pipeline.deaths == [] and weights_of(pipeline.run) == undisturbed


def test_nobody_starts_on_a_redis_that_may_evict(workspace: Path, tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path / "run", workspace)
    try:
        pipeline.client.config_set("maxmemory-policy", "allkeys-lru")
        names = ("rollout0", "reward", "learner")
        started = [pipeline.start(name) for name in names]
        deadline = time.monotonic() + 60
        while any(process.status is None for process in started):
            assert time.monotonic() < deadline, pipeline.told()
            time.sleep(0.05)
        assert [process.status for process in started] == [2, 2, 2]
        for name in names:
            log = (pipeline.folder / f"{name}.log").read_text()
            assert "maxmemory-policy 'allkeys-lru'" in log and "noeviction" in log and "Traceback" not in log
    finally:
        pipeline.close()


def test_a_full_redis_makes_everybody_wait_until_there_is_room(
    begin: Begin, steps: int, undisturbed: dict[str, str]
) -> None:
    pipeline = begin()
    for step in (2, 5):
        pipeline.wait_for_step(step)
        pipeline.client.config_set("maxmemory", 1)
        time.sleep(2.5)  # workers cannot renew their heartbeats and pass for dead
        pipeline.client.config_set("maxmemory", 0)
    pipeline.finish()
    assert audit(pipeline, steps) == {}
    assert pipeline.deaths == [] and weights_of(pipeline.run) == undisturbed
