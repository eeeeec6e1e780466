"""The stream door against a real Redis, with the worker in a thread of the test."""

import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.reward.protocol import Steps
from services.reward.rules.config import RuleConfig
from services.reward.rules.table import RULES, Row
from shared.codec import decode_group, encode
from shared.experience import Group
from shared.scoring import ScoreItem, StepReward
from shared.stream import Streams
from shared.workers import list_workers
from tests.reward.conftest import Start, wait_for
from tests.reward.groups import RIGHT, UNFINISHED, WRONG, add, deliver, make_group


def length(streams: Streams, name: str) -> int:
    return int(streams.client.xlen(streams.key(name)))


def beats(streams: Streams, scored: int) -> list[dict[str, object]]:
    """The workers' heartbeats, once they tell of `scored` groups in all."""
    found: list[dict[str, object]] = []

    def told() -> bool:
        found[:] = list_workers(streams, "reward")
        return sum(int(str(facts["groups_delivered"])) for facts in found) == scored

    wait_for(told, "the heartbeats")
    return found


def experiences(streams: Streams) -> list[Group]:
    return [decode_group(entry.payload) for entry in streams.tail("experiences", 10_000)]


def test_rewards_of_steps_travel_with_their_places(
    streams: Streams, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lines(item: ScoreItem, config: RuleConfig) -> Any:
        ends = [end for end, letter in enumerate(item.response) if letter == "\n"]
        return Steps(0.0, tuple(map(float, ends)), tuple(ends))

    monkeypatch.setitem(RULES, "lines", Row(lines))
    deliver(streams, make_group("g1", ["one\ntwo\n", "none"]))
    start(streams, {"lines": {"weight": 0.5, "place_steps": True}})
    wait_for(lambda: length(streams, "experiences"), "the experience")
    first, second = experiences(streams)[0].completions
    assert first.step_rewards == [StepReward(3, 1.5), StepReward(7, 3.5)]
    assert (first.reward, second.reward, second.step_rewards) == (5.0, 0.0, [])


def test_a_group_goes_on_with_rewards_components_and_all_it_came_with(streams: Streams, start: Start) -> None:
    group = make_group("g1", [RIGHT, WRONG, UNFINISHED])
    deliver(streams, group)
    start(streams)
    wait_for(lambda: length(streams, "experiences"), "the experience")
    (entry,) = streams.tail("experiences", 10)
    assert entry.fields["reward_mean"] == "3.6667"
    assert entry.fields["scorers"] == "gsm8k_reward_fn"
    assert entry.fields["status"] == "ok"
    scored = decode_group(entry.payload)
    assert [c.reward for c in scored.completions] == [10.0, 1.0, 0.0]
    assert [c.components for c in scored.completions] == [{"gsm8k_reward_fn": v} for v in (10.0, 1.0, 0.0)]
    for completion in scored.completions:
        completion.reward, completion.components = None, {}
    assert encode(scored) == encode(group)
    assert length(streams, "rollouts") == 0
    assert streams.client.xpending(streams.key("rollouts"), "reward")["pending"] == 0


def test_a_scorer_that_recovers_is_asked_again_and_its_failures_are_told(
    streams: Streams, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[str] = []

    def flaky(item: ScoreItem, config: RuleConfig) -> float:
        tries.append(item.response)
        if len(tries) < 3:
            raise ConnectionError("judge is away")
        return 0.5

    monkeypatch.setitem(RULES, "flaky", Row(flaky))
    deliver(streams, make_group("g1", ["x"]))
    worker = start(streams, "flaky", max_attempts=3)
    wait_for(lambda: length(streams, "experiences"), "the experience")
    assert experiences(streams)[0].completions[0].reward == 0.5
    assert worker._metrics.failed_attempts.labels("failed")._value.get() == 2
    told = [record.getMessage() for record in caplog.records if "attempt" in record.getMessage()]
    reason = "1 of 1 completions not scored; 0: flaky raised ConnectionError: judge is away"
    assert told == [f"id=g1 attempt {number}: {reason}" for number in (1, 2)]
    assert len(tries) == 3
    assert length(streams, "dead") == 0


def inverse(item: ScoreItem, config: RuleConfig) -> float:
    return 1 / int(item.response)


INVERSE_FAILS = "inverse raised ZeroDivisionError: division by zero"


def test_a_completion_that_cannot_be_scored_is_left_out_with_its_cause_and_is_never_a_zero(
    streams: Streams, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RULES, "inverse", Row(inverse))
    partial = make_group("partial", ["1", "0", "2"])
    partial.prompt = msgspec.structs.replace(partial.prompt, n=4)
    partial.failed = ["completion 3 was not generated"]
    deliver(streams, partial)
    start(streams, "inverse", max_attempts=2)
    wait_for(lambda: length(streams, "experiences"), "the experience")
    (group,) = experiences(streams)
    assert [(c.text, c.reward) for c in group.completions] == [("1", 1.0), ("2", 0.5)]
    assert group.failed == ["completion 3 was not generated", f"1: {INVERSE_FAILS}"]
    (entry,) = streams.tail("experiences", 10)
    assert (entry.fields["failed"], entry.fields["reward_mean"]) == ("2", "0.75")
    assert entry.fields["reward_attempts"] == "2" and length(streams, "dead") == 0


@pytest.mark.parametrize(("texts", "purpose"), [(["0", "0"], "train"), (["1", "0"], "eval")])
def test_a_group_without_any_score_and_a_part_of_a_heldout_one_are_buried_whole_with_their_cause(
    streams: Streams, start: Start, monkeypatch: pytest.MonkeyPatch, texts: list[str], purpose: str
) -> None:
    monkeypatch.setitem(RULES, "inverse", Row(inverse))
    bad = make_group("bad", texts)
    bad.prompt = msgspec.structs.replace(bad.prompt, purpose=purpose)
    deliver(streams, bad, make_group("good", ["1", "2"]))
    start(streams, "inverse", max_attempts=2)
    wait_for(lambda: length(streams, "dead") and length(streams, "experiences"), "both groups")
    (entry,) = streams.tail("dead", 10)
    assert (entry.id, entry.fields["stage"], entry.fields["attempts"]) == ("bad", "reward", "2")
    assert entry.fields["kind"] == "failed"
    zeros = texts.count("0")
    first = texts.index("0")
    assert entry.fields["cause"] == f"{zeros} of 2 completions not scored; {first}: {INVERSE_FAILS}"
    assert entry.payload == encode(bad)
    assert [group.prompt.id for group in experiences(streams)] == ["good"]
    assert length(streams, "rollouts") == 0


def test_a_second_attempt_scores_only_what_the_first_could_not(
    streams: Streams, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []

    def flaky(item: ScoreItem, config: RuleConfig) -> float:
        tries.append(item.response)
        if tries.count("b") == 1 and item.response == "b":
            raise ConnectionError("judge is away")
        return float(len(tries))

    monkeypatch.setitem(RULES, "flaky", Row(flaky))
    deliver(streams, make_group("g1", ["a", "b", "c"]))
    start(streams, "flaky")
    wait_for(lambda: length(streams, "experiences"), "the experience")
    assert tries == ["a", "b", "c", "b"]
    assert [c.reward for c in experiences(streams)[0].completions] == [1.0, 4.0, 3.0]


def test_a_slow_group_holds_up_no_other(
    streams: Streams, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def waiting(item: ScoreItem, config: RuleConfig) -> float:
        return float(item.response == "quick" or go_on.wait(30))

    monkeypatch.setitem(RULES, "waiting", Row(waiting))
    try:
        deliver(streams, make_group("slow", ["slow"]), *(make_group(f"g{n}", ["quick"]) for n in range(100)))
        start(streams, "waiting")
        wait_for(lambda: length(streams, "experiences") == 100, "all the others")
        assert "slow" not in {group.prompt.id for group in experiences(streams)}
    finally:
        go_on.set()
    wait_for(lambda: length(streams, "experiences") == 101, "the slow one")


def test_no_more_groups_are_taken_than_can_be_worked_on(
    streams: Streams, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    monkeypatch.setitem(RULES, "waiting", Row(lambda item, config: float(go_on.wait(30))))
    try:
        deliver(streams, *(make_group(f"g{n}", ["x"]) for n in range(50)))
        worker = start(streams, "waiting")
        wait_for(lambda: len(streams.pending("rollouts", worker.id)) == 32, "the first groups")
        other = start(streams, "gsm8k_reward_fn")
        wait_for(lambda: length(streams, "experiences") == 18, "another replica's taking the rest")
        assert len(streams.pending("rollouts", worker.id)) == 32
        assert not streams.pending("rollouts", other.id)
    finally:
        go_on.set()
    wait_for(lambda: length(streams, "experiences") == 50, "all of them")


def test_scorers_are_told_the_number_of_tokens_and_why_the_completion_ended(
    streams: Streams, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, object]] = []

    def noting(item: ScoreItem, config: RuleConfig) -> float:
        seen.append(item.metadata)
        return 0.0

    monkeypatch.setitem(RULES, "noting", Row(noting))
    deliver(streams, make_group("g1", ["x"], tokens=7))
    start(streams, "noting")
    wait_for(lambda: length(streams, "experiences"), "the experience")
    assert seen == [{"source": "test", "rollstream": {"completion_tokens": 7, "finish_reason": "stop"}}]
    assert experiences(streams)[0].prompt.metadata == {"source": "test"}, (
        "the data set's own stay as they are"
    )


def test_an_invalid_group_is_buried_without_a_second_try(streams: Streams, start: Start) -> None:
    deliver(streams, make_group("g1", [RIGHT], ground_truth=None))
    start(streams, max_attempts=100)
    wait_for(lambda: length(streams, "dead"), "the dead letter")
    (entry,) = streams.tail("dead", 10)
    assert (entry.fields["attempts"], entry.fields["kind"]) == ("1", "refused")
    assert "needs a ground_truth" in entry.fields["cause"]


def test_a_group_that_takes_its_scorer_too_long_is_buried_as_that(
    streams: Streams, start: Start, tmp_path: Path
) -> None:
    (tmp_path / "slow.py").write_text("import time\n\ndef slow(item, parameters):\n    time.sleep(1)\n")
    plugin = {"kind": "plugin", "path": str(tmp_path / "slow.py"), "function": "slow", "run_in": "service"}
    deliver(streams, make_group("g1", [RIGHT]))
    start(streams, {"slow": plugin | {"deadline_seconds": 0.1}}, max_attempts=1)
    wait_for(lambda: length(streams, "dead"), "the dead letter")
    (entry,) = streams.tail("dead", 10)
    assert entry.fields["kind"] == "timeout" and "took longer than 0.1 s" in entry.fields["cause"]


@pytest.mark.parametrize("payload", [b"", b"\x80\x04poison", encode(make_group("g", [RIGHT]))[:-9]])
def test_a_payload_that_is_no_group_is_buried_at_once_and_work_goes_on(
    streams: Streams, start: Start, payload: bytes
) -> None:
    add(streams, "poison", payload)
    deliver(streams, make_group("g1", [RIGHT]))
    worker = start(streams)
    wait_for(lambda: length(streams, "experiences"), "the good group")
    (entry,) = streams.tail("dead", 10)
    assert (entry.id, entry.payload, entry.fields["attempts"]) == ("poison", payload, "1")
    assert entry.fields["cause"] and entry.fields["kind"] == "malformed"
    assert worker.outage is None


def test_two_replicas_share_the_work_and_each_group_comes_out_once(
    streams: Streams, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored: list[str] = []

    def noting(item: ScoreItem, config: RuleConfig) -> float:
        scored.append(item.response)
        return float(len(item.response))

    monkeypatch.setitem(RULES, "noting", Row(noting))
    workers = [start(streams, "noting"), start(streams, "noting")]
    wait_for(lambda: len(list_workers(streams, "reward")) == 2, "both replicas")
    names = [f"g{number}" for number in range(1000)]
    deliver(streams, *(make_group(name, ["a", "bb"]) for name in names))
    wait_for(lambda: length(streams, "experiences") >= 1000, "all experiences")
    assert sorted(group.prompt.id for group in experiences(streams)) == sorted(names)
    assert length(streams, "rollouts") == length(streams, "dead") == 0
    counts = [int(str(facts["groups_delivered"])) for facts in beats(streams, 1000)]
    assert min(counts) > 0, "both worked"
    assert len(scored) == 2000
    assert all(worker.outage is None for worker in workers)


def test_a_stream_that_is_missing_at_the_start_is_created(streams: Streams, start: Start) -> None:
    streams.client.delete(streams.key("rollouts"))
    worker = start(streams)
    wait_for(lambda: worker.outage is None and length(streams, "rollouts") == 0, "the worker's start")
    deliver(streams, make_group("g1", [RIGHT]))
    wait_for(lambda: length(streams, "experiences"), "the experience")


def test_a_redis_that_forgot_everything_is_worked_with_anew(streams: Streams, start: Start) -> None:
    start(streams)
    deliver(streams, make_group("g1", [RIGHT]))
    wait_for(lambda: length(streams, "experiences") == 1, "the first experience")
    streams.client.delete(streams.key("rollouts"), streams.key("experiences"))
    deliver(streams, make_group("g2", [RIGHT]))
    wait_for(lambda: length(streams, "experiences") == 1, "the second experience")
    assert experiences(streams)[0].prompt.id == "g2"
