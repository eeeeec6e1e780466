"""Processes killed while a synchronous run goes on: it ends with the weights of a run left in peace."""

import signal

from tests.chaos.audit import audit, weights_of
from tests.chaos.conftest import Begin


def test_killed_learners_and_rollout_servers_leave_the_weights_of_a_run_left_in_peace(
    begin: Begin, steps: int, undisturbed: dict[str, str]
) -> None:
    pipeline = begin()
    pipeline.wait_for_step(3)
    pipeline.process("rollout0").strike(signal.SIGKILL)
    pipeline.wait_for_step(5)
    pipeline.process("learner").strike(signal.SIGKILL)
    pipeline.wait_for_step(7)
    pipeline.finish()
    assert audit(pipeline, steps) == {}
    assert pipeline.deaths == [("rollout0", -9), ("learner", -9)]
    assert weights_of(pipeline.run) == undisturbed
