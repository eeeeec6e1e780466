"""What becomes of dead groups that people requeue or drop: real Redis, real feed, learners that crash."""

import json
import random
from typing import Any

import pytest

from services.learner.feed import Feed
from shared.codec import decode_prompt, encode
from shared.dead_letters import DeadLetters
from shared.reader import Reader
from shared.stream import Streams
from tests.learner.test_feed import answer, make_feed, pass_on, services, step


def let_die(streams: Streams, feed: Feed, number: int = 1) -> str:
    """Of the 4 prompts in flight one dies and the others are answered; returns its id."""
    entries = Reader(streams, "prompts", "w").read(4, 100)
    dead = entries.pop(number)
    streams.dead_letter(dead, "prompts", "rollout", "failed", "no luck", attempts=3)
    pass_on(streams, entries)
    return dead.id


def requeue(streams: Streams) -> None:
    letters = DeadLetters(streams)
    assert [letters.requeue(letter) for letter in letters.all()] == [True]
    assert not list(letters.all())


def resume(streams: Streams, state: dict[str, Any]) -> Feed:
    """A learner that goes on from a checkpoint, as the coordinator starts it."""
    streams.forget_work(streams.next_learner_epoch())
    feed = make_feed(streams)
    feed.restore(json.loads(json.dumps(state)))
    return feed


def test_a_requeued_group_is_issued_before_new_prompts_and_trained_on_once(streams: Streams) -> None:
    feed = make_feed(streams, total_groups=12)
    feed.issue(0)
    dead = let_die(streams, feed)
    with services(streams):
        first = step(feed, 0)
        requeue(streams)
        feed.issue(1)
        assert feed.in_flight == 4, "it takes a credit like any other"
        second = step(feed, 1)
        assert second[0] == dead
        third = step(feed, 2)
    ids = first + second + third
    assert len(set(ids)) == 12 and ids.count(dead) == 1
    assert feed.counts == {"issued": 12, "trained": 12, "dead": 0}
    assert feed.deaths == {("rollout", "failed"): 1}
    feed.release()
    assert not streams.in_flight() and not streams.client.xlen(streams.key("requeue"))


def test_it_is_issued_at_the_version_of_now(streams: Streams) -> None:
    feed = make_feed(streams)
    feed.issue(0)
    dead = let_die(streams, feed)
    with services(streams):
        step(feed, 0)
    requeue(streams)
    feed.issue(1)
    (prompt,) = [decode_prompt(e.payload) for e in streams.after("prompts", "0") if e.id == dead]
    assert prompt.issued_version == 1


def test_a_copy_from_before_its_death_is_not_trained_on(streams: Streams) -> None:
    """Redis lost a stream, the prompt went out twice, and only one of the two died."""
    feed = make_feed(streams)
    feed.issue(0)
    dead = let_die(streams, feed)
    (letter,) = DeadLetters(streams).all()
    old = encode(answer(decode_prompt(letter.payload), 0))
    with services(streams):
        step(feed, 0)
    requeue(streams)
    feed.issue(1)
    streams.client.xadd(streams.key("experiences"), {"id": dead, "payload": old})
    with services(streams):
        groups = feed.take(1)
    assert dead in [group.prompt.id for group in groups]
    assert {group.min_version for group in groups} == {1}


def test_one_requeued_before_the_learner_noticed_is_issued_in_its_old_place(streams: Streams) -> None:
    feed = make_feed(streams)
    feed.issue(0)
    dead = let_die(streams, feed)
    requeue(streams)
    with services(streams):
        assert dead in step(feed, 0)
    assert feed.counts == {"issued": 4, "trained": 4, "dead": 0}


def test_a_group_that_the_learner_still_waits_for_cannot_be_dropped(streams: Streams) -> None:
    feed = make_feed(streams)
    feed.issue(0)
    let_die(streams, feed)
    letters = DeadLetters(streams)
    (letter,) = letters.all()
    with pytest.raises(ValueError, match="in flight for the learner"):
        letters.drop(letter)
    feed.issue(0)
    assert letters.drop(letter) and not letters.drop(letter) and not letters.requeue(letter)
    with services(streams):
        assert letter.id not in step(feed, 0)


def test_a_request_outlives_a_learner_that_dies_before_its_checkpoint(streams: Streams) -> None:
    feed = make_feed(streams)
    feed.issue(0)
    dead = let_die(streams, feed)
    with services(streams):
        step(feed, 0)
        feed.release()
        state = feed.state()
        requeue(streams)
        assert dead in step(feed, 1)  # and lost with the learner
        again = resume(streams, state)
        assert dead in step(again, 1)
        assert dead not in step(again, 2)


def test_a_request_read_again_after_the_checkpoint_that_holds_it_is_left_alone(streams: Streams) -> None:
    feed = make_feed(streams)
    feed.issue(0)
    dead = let_die(streams, feed)
    with services(streams):
        step(feed, 0)
        requeue(streams)
        assert dead in step(feed, 1)
        state = feed.state()  # durable, but the learner dies before `release` deletes the request
        again = resume(streams, state)
        assert dead not in step(again, 2) + step(again, 3)
    again.release()
    assert not streams.client.xlen(streams.key("requeue"))


def test_one_that_died_again_stays_dead_until_it_is_requeued_again(streams: Streams) -> None:
    feed = make_feed(streams)
    feed.issue(0)
    dead = let_die(streams, feed)
    with services(streams):
        step(feed, 0)
    state = feed.state()
    requeue(streams)
    feed.issue(1)
    assert let_die(streams, feed, number=0) == dead
    again = resume(streams, state)  # which reads the old request and the new letter
    with services(streams):
        assert dead not in step(again, 1)
        assert [letter.id for letter in DeadLetters(streams).all()] == [dead]
        requeue(streams)
        assert dead in step(again, 2)


def test_what_is_not_training_cannot_be_requeued(streams: Streams) -> None:
    streams.client.xadd(streams.key("dead"), {"id": "e1", "purpose": "eval", "cause": "x"})
    streams.client.xadd(streams.key("dead"), {"stage": "reward", "cause": "no id", "payload": b"\x00"})
    of_evaluation, nameless = DeadLetters(streams).all()
    with pytest.raises(ValueError, match="of an evaluation, which went on without it"):
        DeadLetters(streams).requeue(of_evaluation)
    with pytest.raises(ValueError, match="has no id"):
        DeadLetters(streams).requeue(nameless)
    assert len(list(DeadLetters(streams).all())) == 2


def test_old_letters_do_not_stop_a_resumed_learner(streams: Streams) -> None:
    for number in range(50):
        streams.client.xadd(streams.key("dead"), {"id": f"old{number}", "cause": "x"})
    feed = make_feed(streams)
    with services(streams):
        assert len(step(feed, 0)) == 4


class Pipeline:
    """A run in one thread: services and people act while the learner waits, and the learner may crash."""

    def __init__(self, streams: Streams, seed: int) -> None:
        self.streams = streams
        self.random = random.Random(seed)
        self.max_staleness = seed % 3
        self.letters = DeadLetters(streams)
        self.dropped: set[str] = set()
        self.requeued = 0
        self.trained: list[str] = []
        self.version = 0
        self.durable: tuple[dict[str, Any] | None, list[str], int] = (None, [], 0)
        self.start()

    def start(self) -> None:
        state, trained, self.version = self.durable
        self.trained = list(trained)
        self.streams.forget_work(self.streams.next_learner_epoch())
        self.reader = Reader(self.streams, "prompts", "w")
        self.feed = make_feed(
            self.streams, groups_per_step=2, max_staleness=self.max_staleness, while_waiting=self.act
        )
        if state:
            self.feed.restore(json.loads(json.dumps(state)))

    def happens(self, probability: float) -> bool:
        return self.random.random() < probability

    def act(self) -> None:
        for entry in self.reader.read(2, 1):
            if self.happens(0.3):
                self.streams.dead_letter(entry, "prompts", "rollout", "failed", "no luck", attempts=1)
            else:
                pass_on(self.streams, [entry])
        for letter in self.letters.all():
            if self.happens(0.3):
                self.requeued += self.letters.requeue(letter)
            elif self.happens(0.05) and letter.id not in self.streams.in_flight():
                self.letters.drop(letter)
                self.dropped.add(letter.id)

    def step(self) -> None:
        """One training step; the learner may die after each of its parts."""
        groups = self.feed.take(self.version)
        assert all(self.version - group.min_version <= self.max_staleness for group in groups)
        if self.happens(0.1):
            return self.start()
        self.trained += [group.prompt.id for group in groups]
        self.feed.consumed(groups)
        self.version += 1
        self.feed.issue(self.version)
        assert self.feed.in_flight <= (self.max_staleness + 1) * 2
        assert len(set(self.trained)) == len(self.trained), "a group was trained on twice"
        if self.happens(0.1):
            return self.start()
        if self.happens(0.5):
            self.durable = self.feed.state(), list(self.trained), self.version
            if self.happens(0.2):
                return self.start()
            self.feed.release()

    def whereabouts(self) -> None:
        """Every group ever issued is in exactly one place; one that was dropped may be in none."""
        feed = self.feed
        dead = {letter.id for letter in self.letters.all()}
        back = {entry.id for entry in self.streams.after("requeue", "0")}
        in_flight = set(feed._issued) | set(feed._dead._requeued)
        assert not dead & set(self.trained) and not in_flight & set(self.trained)
        issued = {feed._source.at(position, 0).id for position in range(feed._source.position)}
        assert issued <= set(self.trained) | dead | in_flight | back | self.dropped
        counts = feed.counts
        due = len(feed._dead._due)
        assert counts["issued"] == counts["trained"] + counts["dead"] + feed.in_flight + due
        assert counts["trained"] == len(self.trained)


@pytest.mark.parametrize("seed", range(8))
def test_every_group_is_in_one_place_whenever_groups_die_come_back_and_the_learner_crashes(
    streams: Streams, seed: int
) -> None:
    pipeline = Pipeline(streams, seed)
    for _ in range(25):
        pipeline.step()
        pipeline.feed.issue(pipeline.version)
        pipeline.whereabouts()
    assert len(pipeline.trained) > 6 and pipeline.requeued > 1
