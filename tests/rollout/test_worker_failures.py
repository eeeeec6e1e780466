"""What the stream worker does when its engine, Redis or another worker fails."""

import asyncio
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from services.rollout import worker
from services.rollout.engine import EngineDead, SomeFailed
from services.rollout.worker import ATTEMPTS
from shared.reader import Reader
from shared.stream import Streams, connect
from tests.conftest import RedisServer
from tests.rollout.asking import make_prompt
from tests.rollout.scripted import Models, Room, until, with_worker


def test_a_request_that_fails_is_tried_again(room: Room) -> None:
    prompt = make_prompt([5], n=2)
    room.engine.failures = [RuntimeError("once"), RuntimeError("twice")]

    async def body() -> None:
        await room.push(0)
        room.asker.issue([prompt])
        await until(lambda: room.asker.answered([prompt]))

    asyncio.run(with_worker(room, "one", body()))
    assert room.engine.calls == ATTEMPTS


def test_a_request_that_always_fails_is_dead_lettered_with_its_cause(room: Room) -> None:
    prompt = make_prompt([5])
    room.engine.failures = [RuntimeError("a fuse blew")] * ATTEMPTS
    streams = room.asker.streams

    async def body() -> None:
        await room.push(0)
        room.asker.issue([prompt])
        await until(lambda: streams.after("dead", "0"))

    asyncio.run(with_worker(room, "one", body()))
    (entry,) = streams.after("dead", "0")
    assert entry.id == prompt.id and "a fuse blew" in entry.fields["cause"]
    assert entry.fields["attempts"] == str(ATTEMPTS)


@pytest.mark.parametrize("purpose", ["train", "eval"])
def test_completions_that_fail_in_every_attempt_are_left_out_but_of_a_heldout_group(
    room: Room, purpose: Literal["train", "eval"]
) -> None:
    prompt = msgspec.structs.replace(make_prompt([5], n=2), purpose=purpose)
    streams = room.asker.streams

    async def body() -> None:
        await room.push(0)
        (good, _) = await room.engine.generate(prompt)
        room.engine.failures = [SomeFailed(["completion 1 went wrong"], [good])] * ATTEMPTS
        room.asker.issue([prompt])
        await until(lambda: room.asker.answered([prompt]) or streams.after("dead", "0"))

    asyncio.run(with_worker(room, "one", body()))
    assert room.engine.calls == 1 + ATTEMPTS
    if purpose == "train":
        (group,) = room.asker.answered([prompt])
        assert (len(group.completions), group.failed) == (1, ["completion 1 went wrong"])
        (entry,) = streams.after("rollouts", "0")
        assert (entry.fields["failed"], entry.fields["rollout_attempts"]) == ("1", str(ATTEMPTS))
    else:
        (letter,) = streams.after("dead", "0")
        assert "completion 1 went wrong" in letter.fields["cause"] and letter.fields["kind"] == "failed"


def test_a_dead_engine_ends_the_worker_and_keeps_its_prompts(room: Room) -> None:
    prompt = make_prompt([5])
    room.engine.failures = [EngineDead("gone")]

    async def body() -> None:
        await room.push(0)
        room.asker.issue([prompt])
        with pytest.raises(EngineDead):
            await asyncio.wait_for(room.worker("one").run(), timeout=20)

    asyncio.run(body())
    assert len(room.asker.streams.pending("prompts", "one")) == 1
    assert not room.asker.streams.after("dead", "0")


def test_a_worker_claims_nothing_while_others_may_only_seem_dead(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an outage of Redis all heartbeats have expired, and every claim counts as a delivery."""
    monkeypatch.setattr(worker, "_CLAIM_SECONDS", 0.02)
    streams = room.asker.streams
    asked: list[bool] = []

    def may_claim() -> bool:
        asked.append(len(asked) > 5)
        return asked[-1]

    def delivered() -> int:
        (item,) = streams.pending("prompts", "other") or streams.pending("prompts", "one")
        return int(item["times_delivered"])

    one = room.worker("one", may_claim=may_claim)

    async def body() -> None:
        await room.push(0)
        room.engine.gate.clear()
        room.asker.issue([make_prompt([5])])
        assert Reader(streams, "prompts", "other").read(1, 100)
        task = asyncio.create_task(one.run())
        try:
            await until(lambda: len(asked) == 5)
            assert streams.pending("prompts", "other") and delivered() == 1
            await until(lambda: streams.pending("prompts", "one"))
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(body())


def test_only_what_reached_its_stream_is_counted_as_delivered_or_dead(room: Room) -> None:
    streams, one = room.asker.streams, room.worker("one")
    room.asker.issue([make_prompt([5]) for _ in range(3)])
    entries = Reader(streams, "prompts", "one").read(3, 100)

    async def bury_all() -> None:
        for entry in entries:
            await one.outbox.bury(entry, "failed", "a fuse blew", attempts=1)

    assert streams.dead_letter(entries[0], "prompts", "rollout", "failed", "by another", 1)
    asyncio.run(bury_all())
    outcomes = {name: one.metrics.groups.labels(name)._value.get() for name in ("dead", "dropped")}
    assert outcomes == {"dead": 2, "dropped": 1} and one.outbox.groups_dead == 2
    assert len(streams.after("dead", "0")) == 3


def test_a_failure_while_claiming_ends_the_worker(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: str) -> int:
        raise ValueError("a reply that is no number")

    monkeypatch.setattr(room.asker.streams, "claim_from_the_dead", fail)

    async def body() -> None:
        await room.push(0)
        with pytest.raises(ValueError, match="no number"):
            await asyncio.wait_for(room.worker("one").run(), timeout=20)

    asyncio.run(body())


def test_a_redis_that_restarts_costs_no_prompt(tied_model: Models, tmp_path: Path) -> None:
    redis = RedisServer(tmp_path)
    try:
        with connect(redis.url, timeout=2.0) as client:
            room = Room(Streams(client, "restart"), tied_model, tmp_path / "weights")
            prompts = [make_prompt([5]) for _ in range(8)]

            async def body() -> None:
                await room.push(0)
                room.engine.gate.clear()
                room.asker.issue(prompts)
                await until(lambda: len(room.asker.streams.pending("prompts", "one")) == 4)
                redis.kill()
                room.engine.gate.set()
                await until(lambda: room.engine.calls == 4)
                await asyncio.to_thread(redis.start)
                await until(lambda: len(room.asker.answered(prompts)) == 8)

            asyncio.run(with_worker(room, "one", body()))
            room.weights.close()
    finally:
        redis.kill()
