"""The learner's end of the streams against a real Redis; a thread plays the other services."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from services.learner.data.prompts import Dataset, PromptSource, Row
from services.learner.feed import Feed
from shared.codec import decode_group, decode_prompt, encode
from shared.entry import Entry, checksum
from shared.experience import Completion, Float32Array, Group, Int32Array, Prompt, Sampling, VersionSpan
from shared.reader import Reader
from shared.stream import Fenced, QueueLost, Streams


def make_feed(streams: Streams, **changes: Any) -> Feed:
    rows = [Row(f"prompt {number}", Int32Array([1, 2, number]), str(number), {}) for number in range(50)]
    arguments: dict[str, Any] = {
        "learner_epoch": streams.next_learner_epoch(),
        "vocabulary": 100,
        "groups_per_step": 4,
        "max_staleness": 0,
        "total_groups": 100,
        "timeout": 20.0,
        "while_waiting": lambda: None,
    } | changes
    datasets = [Dataset("train", rows)]
    return Feed(
        streams, PromptSource("run", datasets, seed=0, n=1, sampling=Sampling(max_tokens=8)), **arguments
    )


def answer(prompt: Prompt, version: int, **changes: Any) -> Group:
    completion = Completion(
        token_ids=Int32Array([5, 6]),
        logprobs=Float32Array([-0.5, -0.25]),
        text="ok",
        finish_reason="stop",
        version_spans=[VersionSpan(version, 2)],
        reward=1.0,
    )
    for name, value in changes.items():
        setattr(completion, name, value)
    return Group(prompt=prompt, completions=[completion], worker="w", weights_digest="d")


def read_some(reader: Reader) -> list[Entry]:
    """What comes within a second or so, also after the stream was lost."""
    for _ in range(2):
        try:
            return reader.read(1, 1000)
        except QueueLost:
            continue
    raise AssertionError(f"{reader.source} was lost twice")


def pass_on(streams: Streams, entries: list[Entry], version: int | None = None, **changes: Any) -> list[str]:
    """Answer these prompt entries as rollout and reward service would."""
    reward = Reader(streams, "rollouts", "reward")
    for entry in entries:
        prompt = decode_prompt(entry.payload)
        group = answer(prompt, prompt.issued_version if version is None else version, **changes)
        streams.forward(entry, "prompts", "rollouts", prompt.fields(), b"")
        (rollout,) = read_some(reward)
        streams.forward(rollout, "rollouts", "experiences", group.fields(), encode(group))
    return [entry.id for entry in entries]


@contextmanager
def services(streams: Streams, reverse: bool = False) -> Iterator[list[str]]:
    """Answer every prompt in the background; yields the ids answered so far, in order of answering."""
    answered: list[str] = []
    stop = threading.Event()

    def work() -> None:
        reader = Reader(streams, "prompts", "rollout")
        while not stop.is_set():
            try:
                entries = reader.read(8, 50)
            except QueueLost:
                continue
            answered.extend(pass_on(streams, entries[::-1] if reverse else entries))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield answered
    finally:
        stop.set()
        thread.join()


def step(feed: Feed, version: int) -> list[str]:
    groups = feed.take(version)
    feed.consumed(groups)
    return [group.prompt.id for group in groups]


@pytest.mark.parametrize("max_staleness", [0, 1, 3])
def test_groups_in_flight_never_exceed_the_credits(streams: Streams, max_staleness: int) -> None:
    feed = make_feed(streams, max_staleness=max_staleness, total_groups=24)
    credits = (max_staleness + 1) * 4
    seen = []
    with services(streams):
        for version in range(6):
            feed.issue(version)
            seen.append(feed.in_flight)
            groups = feed.take(version)
            assert all(version - group.min_version <= max_staleness for group in groups)
            feed.consumed(groups)
            feed.release()
            assert len(streams.in_flight()) <= credits
    assert max(seen) == min(credits, 24)
    assert feed.in_flight == 0 and feed.counts["issued"] == feed.counts["trained"] == 24


def test_batches_come_in_order_of_issue_whatever_the_order_of_arrival(streams: Streams) -> None:
    forward = make_feed(streams, total_groups=8)
    with services(streams):
        in_order = [step(forward, 0), step(forward, 1)]
    forward.release()
    backward = make_feed(streams, total_groups=8)
    with services(streams, reverse=True):
        assert [step(backward, 0), step(backward, 1)] == in_order


def test_nothing_is_acknowledged_before_release(streams: Streams) -> None:
    feed = make_feed(streams)
    with services(streams):
        ids = step(feed, 0)
    assert streams.client.xlen(streams.key("experiences")) == 4
    assert set(ids) <= streams.in_flight()
    feed.release()
    assert streams.client.xlen(streams.key("experiences")) == 0
    assert not set(ids) & streams.in_flight()


def test_a_restarted_learner_issues_again_what_its_checkpoint_does_not_hold(streams: Streams) -> None:
    first = make_feed(streams)
    with services(streams):
        released = step(first, 0)
        first.release()
        state = first.state()
        lost = step(first, 1)  # trained, but the learner dies before the next checkpoint
        first.issue(2)
    streams.forget_work(streams.next_learner_epoch())  # as a resumed learner does
    second = make_feed(streams)
    second.restore(state)
    with services(streams) as answered:
        again = step(second, 1)
    assert again == lost == answered[:4] and not set(again) & set(released)
    assert second.counts["trained"] == 8 and second.counts["issued"] == 8


def test_a_group_that_was_trained_already_is_dropped_and_counted(streams: Streams) -> None:
    feed = make_feed(streams, total_groups=4)
    feed.issue(0)
    entries = Reader(streams, "prompts", "w").read(4, 100)
    payload = encode(answer(decode_prompt(entries[0].payload), 0))
    pass_on(streams, entries)
    ids = step(feed, 0)
    feed.release()
    streams.client.xadd(streams.key("experiences"), {"id": entries[0].id, "payload": payload})
    assert feed._receive() == 0
    assert feed.counts["duplicates"] == 1 and len(ids) == 4
    assert streams.client.xlen(streams.key("experiences")) == 0


def test_a_dead_lettered_group_is_replaced_by_the_next_prompt(streams: Streams) -> None:
    feed = make_feed(streams, total_groups=4)
    feed.issue(0)
    entries = Reader(streams, "prompts", "w").read(4, 100)
    streams.dead_letter(entries[1], "prompts", "rollout", "failed", "no luck", attempts=3)
    pass_on(streams, [entries[0], *entries[2:]])
    with services(streams):
        ids = step(feed, 0)
    assert entries[1].id not in ids and len(ids) == 4
    assert feed.counts == {"issued": 5, "trained": 4, "dead": 1}
    assert feed.deaths == {("rollout", "failed"): 1}


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"reward": None}, "has no reward"),
        ({"reward": float("nan")}, "reward nan"),
        ({"token_ids": Int32Array([5, 100])}, "token id 100"),
        ({"logprobs": Float32Array([-0.5])}, "2 tokens but 1 logprobs"),
        ({"logprobs": Float32Array([-0.5, float("-inf")])}, "not finite"),
        ({"version_spans": [VersionSpan(0, 1)]}, "version spans over 1"),
    ],
)
def test_an_experience_that_cannot_be_trained_on_is_dead_lettered_with_its_cause(
    streams: Streams, changes: dict[str, Any], cause: str
) -> None:
    feed = make_feed(streams, total_groups=4)
    feed.issue(0)
    bad, *good = Reader(streams, "prompts", "w").read(4, 100)
    group = answer(decode_prompt(bad.payload), 0, **changes)
    streams.forward(bad, "prompts", "experiences", {"id": bad.id}, encode(group))
    pass_on(streams, good)
    with services(streams):
        assert bad.id not in step(feed, 0)
    (dead,) = streams.tail("dead", 10)
    assert dead.id == bad.id and cause in dead.fields["cause"]


def test_an_experience_whose_bits_flipped_on_its_way_is_dead_lettered(streams: Streams) -> None:
    """The flipped bit leaves a log-probability that is finite, and nothing else would notice."""
    feed = make_feed(streams, total_groups=4)
    feed.issue(0)
    bad, *good = Reader(streams, "prompts", "w").read(4, 100)
    payload = encode(answer(decode_prompt(bad.payload), 0))
    logprob = payload.index(Float32Array([-0.5]).tobytes())
    flipped = payload[:logprob] + bytes([payload[logprob] ^ 1]) + payload[logprob + 1 :]
    assert decode_group(flipped).prompt.id == bad.id
    streams.forward(bad, "prompts", "experiences", {"id": bad.id, "checksum": checksum(payload)}, flipped)
    pass_on(streams, good)
    with services(streams):
        assert bad.id not in step(feed, 0)
    (dead,) = streams.tail("dead", 10)
    assert dead.id == bad.id and "changed on its way" in dead.fields["cause"]


def test_a_completion_older_than_its_prompt_is_dead_lettered(streams: Streams) -> None:
    feed = make_feed(streams, total_groups=4)
    feed.issue(7)
    pass_on(streams, Reader(streams, "prompts", "w").read(4, 100), version=6)
    with services(streams):
        step(feed, 7)
    assert {"older than the prompt's 7"} <= {
        entry.fields["cause"][-25:] for entry in streams.tail("dead", 10)
    }


def test_a_group_of_a_version_not_trained_yet_is_generated_again(streams: Streams) -> None:
    """A server may still serve what an earlier learner had published beyond the checkpoint."""
    feed = make_feed(streams, total_groups=4)
    feed.issue(5)
    pass_on(streams, Reader(streams, "prompts", "w").read(4, 100), version=8)
    with services(streams):
        groups = feed.take(5)
    assert {group.max_version for group in groups} == {5}
    assert streams.tail("dead", 10) == []


def test_a_group_of_other_weights_than_were_published_is_generated_again(streams: Streams) -> None:
    """A server that hung while the learner was replaced may serve what the old one gave that number."""
    digests = {5: "published"}
    feed = make_feed(streams, total_groups=4, digest_of=digests.get)
    feed.issue(5)
    pass_on(streams, Reader(streams, "prompts", "w").read(4, 100), version=5)
    assert not feed._receive()
    digests[5] = "d"  # what `answer` says
    with services(streams):
        groups = feed.take(5)
    assert len(groups) == 4 and not streams.tail("dead", 10)


def test_a_run_in_which_every_group_dies_ends_with_the_cause(streams: Streams) -> None:
    feed = make_feed(streams)
    reader = Reader(streams, "prompts", "w")
    with pytest.raises(ValueError, match=r"in a row were dead-lettered.*rollout service: too long"):
        for _ in range(10):
            feed.issue(0)
            for entry in reader.read(4, 100):
                streams.dead_letter(entry, "prompts", "rollout", "failed", "too long", attempts=1)


def test_a_silent_pipeline_ends_with_an_error_that_says_where_the_groups_are(streams: Streams) -> None:
    feed = make_feed(streams, timeout=0.5)
    with pytest.raises(ValueError, match=r"no group arrived .* 4 are in flight .*prompts 4"):
        feed.take(0)


def test_an_older_learner_is_stopped(streams: Streams) -> None:
    first = make_feed(streams)
    make_feed(streams)
    with pytest.raises(Fenced):
        first.issue(0)


def test_evaluation_prompts_come_back_at_once_released_and_are_not_trained_on(streams: Streams) -> None:
    feed = make_feed(streams, max_staleness=1)
    feed.issue(0)
    prompts = [
        Prompt(id=f"e{number}", purpose="eval", epoch=0, index=number, n=1, issued_version=3, text="q",
               token_ids=Int32Array([1]), sampling=Sampling(max_tokens=4))
        for number in range(5)
    ]  # fmt: skip
    with services(streams):
        groups = feed.evaluate(prompts, version=3)
        assert sorted(group.prompt.id for group in groups) == [f"e{number}" for number in range(5)]
        assert not streams.in_flight() & {prompt.id for prompt in prompts}
        assert len(step(feed, 0)) == 4
    assert feed.counts["trained"] == 4
