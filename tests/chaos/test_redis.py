"""Redis killed, full, emptied, rolled back, robbed of a stream: a synchronous run must not show it."""

import signal
import time
from pathlib import Path

from tests.chaos.audit import audit, weights_of
from tests.chaos.conftest import Begin
from tests.chaos.pipeline import Pipeline


def test_a_redis_that_is_killed_or_full_for_a_while_is_waited_for_and_has_lost_nothing(
    begin: Begin, steps: int, undisturbed: dict[str, str]
) -> None:
    pipeline = begin(rollouts=2)
    for step, fsync in ((2, "always"), (4, "everysec")):
        pipeline.wait_for_step(step)
        pipeline.redis.kill()
        pipeline.redis.start("--appendfsync", fsync)
    for step in (6, 8):
        pipeline.wait_for_step(step)
        pipeline.client.config_set("maxmemory", 1)
        time.sleep(2.5)  # workers cannot renew their heartbeats and pass for dead
        pipeline.client.config_set("maxmemory", 0)
    pipeline.finish()
    assert audit(pipeline, steps) == {}
    assert pipeline.deaths == [] and weights_of(pipeline.run) == undisturbed


def come_back(pipeline: Pipeline, content: bytes | None) -> None:
    """Kill Redis, and start it with another file: as a replica does that was promoted before it had the
    newest writes, or, with None, as on a new disk.
    """
    file = pipeline.folder / "appendonly.aof"
    pipeline.redis.kill()
    number = len(list(pipeline.folder.glob("before-*")))
    file.rename(pipeline.folder / f"before-{number}.aof")  # the audit reads it
    if content is not None:
        file.write_bytes(content)
    pipeline.redis.start()


def test_what_redis_has_lost_is_issued_again(begin: Begin, steps: int, undisturbed: dict[str, str]) -> None:
    pipeline = begin()
    pipeline.wait_for_step(1)
    pipeline.client.flushall()
    for step, stream in ((2, "prompts"), (3, "rollouts"), (4, "experiences")):
        pipeline.wait_for_step(step)
        pipeline.client.delete(pipeline.streams.key(stream))
    pipeline.wait_for_step(5)
    come_back(pipeline, None)
    for step in (6, 8):
        pipeline.wait_for_step(step)
        older = (pipeline.folder / "appendonly.aof").read_bytes()
        pipeline.wait_for_step(step + 1)
        come_back(pipeline, older)
    pipeline.wait_for_step(10)
    pipeline.process("learner").strike(signal.SIGKILL)
    pipeline.client.flushall()
    pipeline.finish()
    assert audit(pipeline, steps) == {}
    assert pipeline.deaths == [("learner", -9)] and weights_of(pipeline.run) == undisturbed


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
