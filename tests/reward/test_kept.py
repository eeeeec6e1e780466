"""What is kept of a group's scores: for whom it counts, and for how long."""

from services.reward.attempt import Attempt
from services.reward.config import RewardConfig
from services.reward.kept import SECONDS, Kept
from shared.scoring import ScoreResult
from shared.stream import Streams
from tests.reward.groups import RIGHT, add, deliver, make_group

SCORED = {1: ScoreResult("0", 0.5, {"length": 0.5}, {"length": [0.25, 0.25]})}


def kept(streams: Streams, **scorers: float) -> Kept:
    return Kept(streams, RewardConfig.model_validate({"scorers": scorers}))


def keys(streams: Streams) -> list[str]:
    """Of what is kept in this run."""
    return [key.decode() for key in streams.client.scan_iter() if streams.key("scores:") in key.decode()]


def test_scores_count_for_the_same_text_and_scorers_only_and_not_for_ever(streams: Streams) -> None:
    deliver(streams, make_group("g1", [RIGHT, RIGHT]), make_group("g2", [RIGHT, RIGHT]))
    add(streams, "g1", b"other completions")
    first, *others = streams.after("rollouts", "0")
    ours = kept(streams, gsm8k_reward_fn=1.0)
    ours.keep(Attempt(first, kept=SCORED))
    assert [attempt.kept for attempt in ours.recall([first, *others])] == [SCORED, {}, {}]
    assert kept(streams, gsm8k_reward_fn=2.0).recall([first])[0].kept == {}
    (key,) = keys(streams)
    assert 0 < streams.client.ttl(key) <= SECONDS
    streams.client.hset(key, mapping={"0": b"no result", "x": b""})
    assert ours.recall([first])[0].kept == SCORED, "what others wrote there counts for nothing"
    ours.forget([first])
    assert ours.recall([first])[0].kept == {}
