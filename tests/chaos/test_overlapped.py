"""A run that generates and trains at the same time, with several servers, struck everywhere."""

import json

import pytest

from tests.chaos.audit import audit
from tests.chaos.conftest import Begin
from tests.chaos.engine import TOKEN_SECONDS
from tests.chaos.points import LEARNER, REWARD, ROLLOUT
from tests.chaos.service import CLOCK


@pytest.mark.chaos_long
def test_an_overlapped_run_struck_at_every_point_trains_each_group_once_within_its_staleness(
    begin: Begin, steps: int
) -> None:
    """Also with clocks that are hours apart."""
    clocks = {"learner": "-3600", "reward": "3600", "rollout0": "7200", "rollout1": "-7200"}
    variables = {name: {CLOCK: seconds, TOKEN_SECONDS: "0.005"} for name, seconds in clocks.items()}
    strikes = {"learner": LEARNER, "rollout0": ROLLOUT[:3], "rollout1": ROLLOUT[3:], "reward": REWARD}
    pipeline = begin(rollouts=2, strikes=strikes, variables=variables, max_staleness=2)
    pipeline.finish()
    assert audit(pipeline, steps) == {}
    assert not any(pipeline.strikes[name] for name in ("learner", "rollout0", "reward")), pipeline.strikes
    report = json.loads((pipeline.run / "report.json").read_text())
    assert report["groups_issued"] == report["groups_trained"] == steps * 4
    assert report["staleness_max"] <= 2
