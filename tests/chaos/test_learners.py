"""Learners that are replaced while they live, cannot write, or find a checkpoint damaged."""

import signal
import time

from tests.chaos.audit import audit, weights_of
from tests.chaos.conftest import Begin
from tests.chaos.strikes import Strike


def test_a_stopped_learner_that_was_replaced_does_nothing_more_when_it_wakes_up(
    begin: Begin, steps: int, undisturbed: dict[str, str]
) -> None:
    pipeline = begin()
    pipeline.wait_for_step(3)
    first = pipeline.process("learner")
    first.strike(signal.SIGSTOP)
    pipeline.start("learner")
    pipeline.wait_for_step(5)
    first.strike(signal.SIGCONT)
    pipeline.wait(lambda: first.status is not None, "the end of the first learner")
    assert first.status == 2
    log = (pipeline.folder / "learner.log").read_text()
    assert "FENCED" in log and "two learners must not share a run" in log and "Traceback" not in log
    pipeline.finish()
    assert audit(pipeline, steps) == {}
    assert pipeline.deaths == [] and weights_of(pipeline.run) == undisturbed


def test_one_that_wakes_up_while_it_writes_a_checkpoint_spoils_nobodys(
    begin: Begin, steps: int, undisturbed: dict[str, str]
) -> None:
    pipeline = begin(strikes={"learner": [Strike("services.learner.checkpoint:_flush", "before", 3, "stop")]})
    checkpoints = pipeline.run / "checkpoints"
    pipeline.wait(lambda: list(checkpoints.glob(".step-*")) and pipeline.step == 2, "a checkpoint begun")
    time.sleep(0.5)
    first = pipeline.process("learner")
    pipeline.start("learner")
    pipeline.wait_for_step(5)
    first.strike(signal.SIGCONT)
    pipeline.wait(lambda: first.status is not None, "the end of the first learner")
    assert first.status == 2
    pipeline.finish()
    assert audit(pipeline, steps) == {}
    assert not list(checkpoints.glob(".*")), "something was left behind"
    assert pipeline.deaths == [] and weights_of(pipeline.run) == undisturbed


def test_a_full_disk_ends_the_learner_with_its_last_checkpoint_whole(
    begin: Begin, steps: int, undisturbed: dict[str, str]
) -> None:
    pipeline = begin(
        strikes={
            "learner": [
                Strike("services.learner.models.snapshot:Snapshot.write", "after", 2, "disk_full"),
                Strike("services.learner.checkpoint:_flush", "before", 30, "disk_full"),
                Strike("shared.telemetry:JsonLines._append", "before", 20, "disk_full"),
            ]
        }
    )
    pipeline.failures_allowed = 3
    pipeline.finish()
    log = (pipeline.folder / "learner.log").read_text()
    assert log.count("No space left on device. Make room") == 3 and "Traceback" not in log
    assert audit(pipeline, steps) == {}
    assert pipeline.deaths == [("learner", 2)] * 3 and weights_of(pipeline.run) == undisturbed


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before_it(
    begin: Begin, steps: int, undisturbed: dict[str, str]
) -> None:
    """As after a power failure of a disk that had promised more than it kept."""
    pipeline = begin()
    checkpoints = pipeline.run / "checkpoints"
    for step, file in ((4, "policy/model.safetensors"), (8, "manifest.json")):
        awaited = checkpoints / f"step-{step:06d}"
        pipeline.wait(awaited.exists, f"checkpoint {step}")
        pipeline.process("learner").strike(signal.SIGKILL)
        newest = sorted(checkpoints.glob("step-*"))[-1]
        content = (newest / file).read_bytes()
        (newest / file).write_bytes(content[: len(content) // 2])
    pipeline.finish()
    assert audit(pipeline, steps) == {}
    assert pipeline.deaths == [("learner", -9)] * 2 and weights_of(pipeline.run) == undisturbed
