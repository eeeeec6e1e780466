"""Workers that are stopped at named points of their code, and wake up when others have done their work."""

import signal

from tests.chaos.audit import audit, weights_of
from tests.chaos.conftest import Begin
from tests.chaos.strikes import Strike


def test_workers_that_wake_up_as_they_hand_on_what_others_have_done_change_nothing(
    begin: Begin, steps: int, undisturbed: dict[str, str]
) -> None:
    stop = Strike("shared.stream:Streams.forward_all", "before", 1, "stop")
    stopped = {"rollout0": "prompts", "reward": "groups"}
    pipeline = begin(rollouts=2, rewards=2, strikes={name: [stop] for name in stopped})

    def taken_over() -> bool:
        told = pipeline.events("taken_over")
        return all(any(what in text for text in told) for what in stopped.values())

    pipeline.wait(taken_over, "the take-over of what they had")
    for name in stopped:
        pipeline.process(name).strike(signal.SIGCONT)
    pipeline.finish()
    assert audit(pipeline, steps) == {}
    assert pipeline.deaths == [] and weights_of(pipeline.run) == undisturbed
