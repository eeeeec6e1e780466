"""The stream protocol against a model of it: any order of issues, reads, lost replies, crashes, claims, late
forwards, fences and losses leaves Redis as the model says.
"""

import uuid
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from shared.entry import Entry
from shared.handing_back import hand_back, hand_back_all
from shared.losses import LossWatch
from shared.reader import SUSPECT_DELIVERIES, Reader
from shared.stream import GROUPS, MAX_DELIVERIES, STREAMS, Fenced, QueueLost, StreamName, Streams, connect
from tests.conftest import RedisServer

CONSUMERS = ("a", "b")
NEXT: dict[StreamName, StreamName] = {"prompts": "rollouts", "rollouts": "experiences"}

streams_ = st.sampled_from(STREAMS)
workers_ = st.sampled_from(("prompts", "rollouts"))
consumers_ = st.sampled_from(CONSUMERS)
numbers_ = st.integers(0, 7)


@dataclass(eq=False)
class Copy:
    """One entry on a stream, as the model knows it."""

    id: str
    stream: StreamName
    owner: str | None = None
    """The consumer in whose pending list it is."""
    deliveries: int = 0


@dataclass
class Consumer:
    """A reader and what it has handed out and not finished."""

    reader: Reader
    held: dict[str, Copy] = field(default_factory=dict)
    alone: Copy | None = None


class Protocol(RuleBasedStateMachine):
    def __init__(self, server: RedisServer) -> None:
        super().__init__()
        self.streams = Streams(connect(server.url), f"machine-{uuid.uuid4().hex}")
        self.streams.ensure_groups()
        self.epoch = self.streams.next_learner_epoch()
        self.watch = LossWatch(self.streams)
        self.watch.look()
        self.copies: list[Copy] = []
        self.in_flight: set[str] = set()
        self.dead: list[str] = []
        self.kinds: list[str] = []  # why they died
        self.consumers = {
            (stream, name): self.consumer(stream, name) for stream in STREAMS for name in CONSUMERS
        }
        self.hands: list[tuple[Consumer, Entry, Copy]] = []
        """Entries that somebody holds or, since its process was restarted, once held."""

    def teardown(self) -> None:
        self.streams.client.close()

    def consumer(self, stream: StreamName, name: str) -> Consumer:
        return Consumer(Reader(self.streams, stream, name, sweep_seconds=0.0))

    def on(self, stream: StreamName) -> list[Copy]:
        return [copy for copy in self.copies if copy.stream == stream]

    @rule(numbers=st.lists(numbers_, max_size=4))
    def issue(self, numbers: list[int]) -> None:
        ids = [f"id{number}" for number in numbers]
        new = [id for id in dict.fromkeys(ids) if id not in self.in_flight]
        prompts = [({"id": id}, id.encode()) for id in ids]
        assert self.streams.append_prompts(prompts, self.epoch) == len(new)
        self.in_flight.update(new)
        self.copies += [Copy(id, "prompts") for id in new]

    @rule(stream=streams_, name=consumers_, count=st.integers(1, 3))
    def read(self, stream: StreamName, name: str, count: int) -> None:
        consumer = self.consumers[stream, name]
        expected = self.expected(consumer, stream, name, count)
        entries = consumer.reader.read(count, block_ms=1)
        assert [entry.id for entry in entries] == [copy.id for copy in expected]
        assert [entry.deliveries for entry in entries] == [copy.deliveries for copy in expected]
        for entry, copy in zip(entries, expected, strict=True):
            consumer.held[entry.entry_id] = copy
            self.hands.append((consumer, entry, copy))

    def expected(self, consumer: Consumer, stream: StreamName, name: str, count: int) -> list[Copy]:
        if consumer.alone in consumer.held.values():
            return []
        held = list(consumer.held.values())
        unseen = [copy for copy in self.on(stream) if copy.owner == name and copy not in held]
        innocent = [copy for copy in unseen if copy.deliveries <= SUSPECT_DELIVERIES][:count]
        suspects = [copy for copy in unseen if copy.deliveries > SUSPECT_DELIVERIES]
        if suspects and suspects[0].deliveries % 2:
            suspects.reverse()
        for copy in [copy for copy in suspects if copy.deliveries > MAX_DELIVERIES]:
            self.copies.remove(copy)
            self.dead.append(copy.id)
            self.kinds.append("unfinished")
            suspects.remove(copy)
        if innocent or (suspects and held):
            return innocent
        if suspects:
            consumer.alone = suspects[0]
            return suspects[:1]
        new = [copy for copy in self.on(stream) if copy.owner is None][:count]
        for copy in new:
            copy.owner, copy.deliveries = name, 1
        return new

    @rule(stream=streams_, name=consumers_)
    def a_reply_is_lost(self, stream: StreamName, name: str) -> None:
        """Only Redis knows that the consumer was given the entry."""
        key = self.streams.key(stream)
        self.streams.client.xreadgroup(GROUPS[stream], name, {key: ">"}, 1)
        for copy in [copy for copy in self.on(stream) if copy.owner is None][:1]:
            copy.owner, copy.deliveries = name, 1

    @rule(stream=streams_, name=consumers_)
    def restart(self, stream: StreamName, name: str) -> None:
        """A process dies and comes back under its name; what it held may still be finished by its ghost."""
        self.consumers[stream, name] = self.consumer(stream, name)

    @rule(stream=workers_, name=consumers_)
    def take_over(self, stream: StreamName, name: str) -> None:
        """All others pass for dead."""
        claimed = [copy for copy in self.on(stream) if copy.owner not in (None, name)]
        assert self.streams.claim_from_the_dead(stream, name) == len(claimed)
        for copy in claimed:
            copy.owner, copy.deliveries = name, copy.deliveries + 1

    def hand(self, data: Any, of: tuple[StreamName, ...]) -> tuple[Consumer, Entry, Copy] | None:
        hands = [hand for hand in self.hands if hand[2].stream in of]
        return data.draw(st.sampled_from(hands)) if hands else None

    def finished(self, hand: tuple[Consumer, Entry, Copy]) -> None:
        consumer, entry, _ = hand
        consumer.reader.done(entry)
        consumer.held.pop(entry.entry_id, None)
        self.hands.remove(hand)

    @rule(data=st.data(), twice=st.booleans())
    def forward(self, data: Any, twice: bool) -> None:
        """Also by those who hold it no more, and again after a reply that was lost."""
        hand = self.hand(data, ("prompts", "rollouts"))
        if hand is None:
            return
        _, entry, copy = hand
        target = NEXT[copy.stream]
        there = copy in self.copies
        moved = self.streams.forward(entry, copy.stream, target, {"id": copy.id}, entry.payload)
        assert moved == there
        if twice:
            assert not self.streams.forward(entry, copy.stream, target, {"id": copy.id}, entry.payload)
        if there:
            self.copies.remove(copy)
            self.copies.append(Copy(copy.id, target))
        self.finished(hand)

    @rule(data=st.data())
    def give_back(self, data: Any) -> None:
        """Also by those who hold it no more."""
        hand = self.hand(data, ("prompts", "rollouts"))
        if hand is None:
            return
        _, entry, copy = hand
        there = copy in self.copies
        assert hand_back(self.streams, copy.stream, entry) == there
        if there:
            self.put_back(copy)
        self.finished(hand)

    @rule(stream=workers_, name=consumers_)
    def give_all_back(self, stream: StreamName, name: str) -> None:
        """A worker leaves, and another process takes its name; what it held, its ghost may still finish."""
        held = [copy for copy in self.on(stream) if copy.owner == name]
        assert hand_back_all(self.streams, stream, name) == len(held)
        for copy in held:
            self.put_back(copy)
        self.restart(stream, name)

    def put_back(self, copy: Copy) -> None:
        """As a new entry, which nobody was given."""
        self.copies.remove(copy)
        self.copies.append(Copy(copy.id, copy.stream))

    @rule(data=st.data())
    def bury(self, data: Any) -> None:
        hand = self.hand(data, STREAMS)
        if hand is None:
            return
        _, entry, copy = hand
        there = copy in self.copies
        assert self.streams.dead_letter(entry, copy.stream, "test", "failed", "no luck", attempts=1) == there
        if there:
            self.copies.remove(copy)
            self.dead.append(copy.id)
            self.kinds.append("failed")
        self.finished(hand)

    @rule(data=st.data())
    def release(self, data: Any) -> None:
        hand = self.hand(data, ("experiences",))
        if hand is None:
            return
        _, entry, copy = hand
        self.streams.release([entry], [copy.id], self.epoch)
        if copy in self.copies:
            self.copies.remove(copy)
        self.in_flight.discard(copy.id)
        self.finished(hand)

    @precondition(lambda self: self.dead)
    @rule()
    def give_up_the_dead(self) -> None:
        self.streams.release([], self.dead, self.epoch)
        self.in_flight.difference_update(self.dead)

    @rule(number=numbers_)
    def another_learner(self, number: int) -> None:
        older, self.epoch = self.epoch, self.streams.next_learner_epoch()
        with pytest.raises(Fenced):
            self.streams.append_prompts([({"id": f"id{number}"}, b"")], older)
        with pytest.raises(Fenced):
            self.streams.release([], [f"id{number}"], older)

    @rule()
    def start_anew(self) -> None:
        self.streams.forget_work(self.epoch)
        self.copies.clear()
        self.in_flight.clear()
        self.watch.look_now()
        assert self.watch.look() is None

    @rule(stream=streams_, name=consumers_)
    def lose(self, stream: StreamName, name: str) -> None:
        """A stream vanishes; the first who reads it tells the learner."""
        self.streams.client.delete(self.streams.key(stream))
        self.copies = [copy for copy in self.copies if copy.stream != stream]
        consumer = self.consumers[stream, name]
        if consumer.alone not in consumer.held.values():
            with pytest.raises(QueueLost):
                consumer.reader.read(1, block_ms=1)
            consumer.held.clear()
            self.watch.look_now()
            assert self.watch.look() == "loss"
        else:
            self.streams.ensure_groups([stream])

    @invariant()
    def redis_is_as_the_model(self) -> None:
        for stream in STREAMS:
            entries = self.streams.after(stream, "0")
            assert [entry.id for entry in entries] == [copy.id for copy in self.on(stream)]
            assert all(entry.payload == entry.id.encode() for entry in entries)
        assert self.streams.in_flight() == self.in_flight
        letters = self.streams.after("dead", "0")
        assert [letter.id for letter in letters] == self.dead
        assert [letter.fields["kind"] for letter in letters] == self.kinds


def test_any_order_of_events_leaves_redis_as_the_model_says(redis_server: RedisServer) -> None:
    run_state_machine_as_test(
        lambda: Protocol(redis_server),  # type: ignore[arg-type]
        settings=settings(
            max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
