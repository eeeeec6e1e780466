"""The stream protocol against a real Redis."""

import dataclasses
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from shared import stream
from shared.codec import MalformedEntry, intact_payload
from shared.entry import Entry
from shared.losses import LossWatch
from shared.reader import Reader
from shared.stream import Fenced, Move, QueueLost, StreamName, Streams, parts


def issue(streams: Streams, *numbers: int, epoch: int = 1) -> int:
    prompts = [({"id": f"id{number}"}, f"payload{number}".encode()) for number in numbers]
    return streams.append_prompts(prompts, epoch)


def test_a_prompt_in_flight_is_not_issued_twice(streams: Streams) -> None:
    assert issue(streams, 1)
    assert not issue(streams, 1)
    assert streams.client.xlen(streams.key("prompts")) == 1
    assert streams.in_flight() == {"id1"}


def test_of_several_prompts_those_that_are_not_in_flight_are_issued_in_order(streams: Streams) -> None:
    assert issue(streams, 2) == 1
    assert issue(streams, 3, 2, 1, 3) == 2
    assert [(entry.id, entry.payload) for entry in streams.after("prompts", "0")] == [
        ("id2", b"payload2"),
        ("id3", b"payload3"),
        ("id1", b"payload1"),
    ]
    assert issue(streams) == 0


def test_an_entry_moves_through_all_hops_and_leaves_nothing_behind(streams: Streams) -> None:
    issue(streams, 1)
    (prompt,) = Reader(streams, "prompts", "rollout-1").read(10, 100)
    assert prompt.payload == b"payload1"
    assert streams.forward(prompt, "prompts", "rollouts", {"id": prompt.id}, b"rolled")
    (rollout,) = Reader(streams, "rollouts", "reward-1").read(10, 100)
    assert streams.forward(rollout, "rollouts", "experiences", {"id": rollout.id}, b"scored")
    (experience,) = Reader(streams, "experiences", "learner").read(10, 100)
    assert (experience.id, experience.payload) == ("id1", b"scored")
    streams.release([experience], ["id1"], learner_epoch=1)
    assert streams.in_flight() == set()
    assert [streams.client.xlen(streams.key(name)) for name in ("prompts", "rollouts", "experiences")] == [
        0,
        0,
        0,
    ]


def test_several_entries_are_handed_on_in_one_step_but_for_those_that_are_gone(streams: Streams) -> None:
    issue(streams, 1, 2, 3)
    entries = Reader(streams, "prompts", "rollout-1").read(10, 100)
    assert streams.forward(entries[1], "prompts", "rollouts", {"id": "id2"}, b"first")
    moves = [(entry, {"id": entry.id}, entry.id.encode()) for entry in entries]
    assert streams.forward_all(moves, "prompts", "rollouts") == [True, False, True]
    rollouts = Reader(streams, "rollouts", "reward-1").read(10, 100)
    assert [rollout.payload for rollout in rollouts] == [b"first", b"id1", b"id3"]
    assert all("issued_at" in rollout.fields for rollout in rollouts)
    assert streams.client.xlen(streams.key("prompts")) == 0
    assert streams.forward_all([], "prompts", "rollouts") == []


def test_large_entries_are_parted_in_their_order() -> None:
    sizes = [60_000, 60_000, 60_000, 300_000, 1, 2, 3]
    moves: list[Move] = [(Entry(str(number), {}, b""), {}, b"x" * size) for number, size in enumerate(sizes)]
    cut = [[len(payload) for _, _, payload in part] for part in parts(moves)]
    assert cut == [[60_000, 60_000], [60_000], [300_000], [1, 2, 3]]


def test_what_is_pending_is_told_whole_however_much_it_is(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_PAGE", 3)
    issue(streams, *range(7))
    entries = Reader(streams, "prompts", "w").read(7, 100)
    for left in range(7, -1, -1):
        assert len(streams.pending("prompts", "w")) == left
        if left:
            assert streams.forward(entries[left - 1], "prompts", "rollouts", {}, b"")


def test_a_delivery_whose_reply_was_lost_is_found_again(streams: Streams) -> None:
    issue(streams, 1)
    reader = Reader(streams, "prompts", "w", sweep_seconds=1000)
    assert reader.read(1, 10)
    issue(streams, 2)
    # The reply of this read never reaches the reader: only Redis knows that "w" was given id2.
    streams.client.xreadgroup("rollout", "w", {streams.key("prompts"): ">"}, 1, 10)
    assert reader.read(1, 10) == []
    reader.sweep_now()
    assert [entry.id for entry in reader.read(10, 10)] == ["id2"]


@pytest.mark.parametrize("fate", ["handed on", "deleted"])
def test_an_entry_handed_on_while_the_reader_sweeps_is_not_taken_for_lost(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, fate: str
) -> None:
    """Other threads finish entries between the sweep's two looks; one that was deleted is a loss."""
    issue(streams, 7)
    reader = Reader(streams, "prompts", "w", sweep_seconds=0.0)
    (entry,) = reader.read(1, 10)
    watch = LossWatch(streams)
    watch.look()
    watch.look_now()
    look = streams.pending

    def look_and_finish(source: StreamName, consumer: str) -> list[Any]:
        found = look(source, consumer)
        if fate == "handed on":
            assert streams.forward(entry, "prompts", "rollouts", {}, b"group")
        else:
            streams.client.xdel(streams.key("prompts"), entry.entry_id)
        reader.done(entry)
        return found

    monkeypatch.setattr(streams, "pending", look_and_finish)
    assert reader.read(1, 10) == []
    assert watch.look() == (None if fate == "handed on" else "loss")


def test_a_dead_letter_keeps_the_entry_and_its_cause(streams: Streams) -> None:
    issue(streams, 7)
    (entry,) = Reader(streams, "prompts", "w").read(1, 10)
    assert streams.dead_letter(entry, "prompts", "rollout", "failed", "too long", attempts=1)
    assert not streams.dead_letter(entry, "prompts", "rollout", "failed", "too long", attempts=1)
    (dead,) = streams.after("dead", "0")
    assert (dead.id, dead.payload, dead.fields["cause"]) == ("id7", b"payload7", "too long")
    assert streams.client.xlen(streams.key("prompts")) == 0


def test_a_payload_that_was_changed_on_its_way_is_noticed(streams: Streams) -> None:
    issue(streams, 7)
    (entry,) = Reader(streams, "prompts", "w").read(1, 10)
    assert intact_payload(entry) == b"payload7"
    flipped = dataclasses.replace(entry, payload=b"payload6")
    with pytest.raises(MalformedEntry, match="was changed on its way"):
        intact_payload(flipped)
    assert streams.dead_letter(flipped, "prompts", "rollout", "failed", "changed", attempts=1)
    (dead,) = streams.after("dead", "0")
    assert dead.fields["checksum"] == entry.fields["checksum"], "as the writer had it"


def test_an_older_learner_is_fenced_from_issuing_and_releasing(streams: Streams) -> None:
    first = streams.next_learner_epoch()
    assert issue(streams, 1, epoch=first)
    second = streams.next_learner_epoch()
    with pytest.raises(Fenced, match="two learners"):
        issue(streams, 2, epoch=first)
    with pytest.raises(Fenced):
        streams.release([], ["id1"], first)
    streams.event("step", "learner", "of the second one")
    with pytest.raises(Fenced):  # it was paused between taking its epoch and clearing the run
        streams.forget_run(first)
    assert streams.in_flight() == {"id1"} and streams.client.xlen(streams.key("prompts")) == 1
    assert streams.client.xlen(streams.key("events")) == 1
    assert issue(streams, 2, epoch=second)


def test_a_learner_epoch_rises_also_after_redis_lost_the_last_one(streams: Streams) -> None:
    before = streams.next_learner_epoch()
    assert streams.next_learner_epoch() == before + 1
    streams.client.delete(streams.key("learner_epoch"))
    assert streams.next_learner_epoch() >= before


def test_an_emptied_redis_is_reported_and_its_streams_made_anew(streams: Streams) -> None:
    reader = Reader(streams, "prompts", "w")
    streams.client.delete(streams.key("prompts"))
    with pytest.raises(QueueLost):
        reader.read(1, 10)
    issue(streams, 1)
    assert [entry.id for entry in reader.read(1, 10)] == ["id1"]


def test_a_learner_that_starts_anew_is_not_taken_for_a_loss(streams: Streams) -> None:
    issue(streams, 1, 2)
    reader, waiting = Reader(streams, "prompts", "w"), Reader(streams, "prompts", "waiting")
    (held,) = reader.read(1, 10)
    watch = LossWatch(streams)
    assert watch.look() is None
    with ThreadPoolExecutor() as pool:
        assert len(waiting.read(1, 10)) == 1
        found = pool.submit(waiting.read, 1, 5000)
        deadline = time.monotonic() + 5
        while not streams.client.info("clients")["blocked_clients"]:
            assert time.monotonic() < deadline
        streams.forget_work(learner_epoch=1)
        assert streams.in_flight() == set()
        assert not streams.forward(held, "prompts", "rollouts", {"id": held.id}, b"too late")
        issue(streams, 3)
        assert [entry.id for entry in found.result()] == ["id3"]
    watch.look_now()
    assert watch.look() is None


def test_the_learner_hears_of_a_stream_that_a_worker_found_lost(streams: Streams) -> None:
    watch = LossWatch(streams)
    assert watch.look() is None
    streams.client.delete(streams.key("rollouts"))
    with pytest.raises(QueueLost):
        Reader(streams, "rollouts", "w").read(1, 10)
    assert watch.look() is None, "one look a second is enough"
    watch.look_now()
    assert watch.look() == "loss"
    watch.look_now()
    assert watch.look() is None


@pytest.mark.parametrize("lost", ["stream", "entry"])
def test_a_loss_is_never_cleared_away_without_its_mark(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """A second command, for the mark, might not get through."""
    issue(streams, 1)
    reader = Reader(streams, "prompts", "w", sweep_seconds=0.0)
    (entry,) = reader.read(1, 10)
    reader.done(entry)
    watch = LossWatch(streams)
    monkeypatch.setattr(streams.client, "set", lambda *_: pytest.fail("by itself"))
    if lost == "stream":
        streams.client.delete(streams.key("prompts"))
        with pytest.raises(QueueLost):
            reader.read(1, 10)
    else:
        streams.client.xdel(streams.key("prompts"), entry.entry_id)
        assert reader.read(1, 10) == []
    assert watch.look() == "loss"


def test_acknowledging_and_forwarding_work_when_redis_is_full(streams: Streams) -> None:
    issue(streams, 1)
    issue(streams, 2)
    first, second = Reader(streams, "prompts", "w").read(2, 10)
    streams.forward(first, "prompts", "experiences", {"id": first.id}, b"")
    (experience,) = Reader(streams, "experiences", "learner").read(1, 10)
    streams.client.config_set("maxmemory", 1)
    try:
        assert streams.forward(second, "prompts", "rollouts", {"id": second.id}, b"x")
        streams.release([experience], ["id1"], learner_epoch=1)
        with pytest.raises(Exception, match="OOM"):
            issue(streams, 3)
    finally:
        streams.client.config_set("maxmemory", 0)
    assert streams.in_flight() == {"id2"}
