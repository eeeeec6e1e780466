"""Processes killed at named points of their code, in runs that must not show it."""

from tests.chaos.audit import audit, weights_of
from tests.chaos.conftest import Begin
from tests.chaos.points import LEARNER, REWARD, ROLLOUT


def test_a_synchronous_run_struck_at_every_point_ends_with_the_weights_of_one_left_in_peace(
    begin: Begin, steps: int, undisturbed: dict[str, str]
) -> None:
    strikes = {"learner": LEARNER, "rollout0": ROLLOUT, "reward": REWARD}
    pipeline = begin(strikes=strikes)
    pipeline.finish()
    assert audit(pipeline, steps) == {}
    struck = [name for name, _ in pipeline.deaths]
    assert {name: struck.count(name) for name in strikes} == {name: len(s) for name, s in strikes.items()}
    assert weights_of(pipeline.run) == undisturbed
