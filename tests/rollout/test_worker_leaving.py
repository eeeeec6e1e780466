"""What a stream worker that leaves does with prompts in its hands."""

import asyncio
import threading

import pytest

from services.rollout import outbox
from shared.entry import Entry
from tests.rollout.asking import make_prompt
from tests.rollout.scripted import Room, until, with_worker


def test_what_a_stopped_worker_leaves_is_taken_over_by_the_next(room: Room) -> None:
    prompts = [make_prompt([5]) for _ in range(8)]

    streams = room.asker.streams

    async def first() -> None:
        await room.push(0)
        room.engine.gate.clear()
        room.asker.issue(prompts)
        await until(lambda: len(streams.pending("prompts", "one")) == 4)

    async def second() -> None:
        room.engine.gate.set()
        await until(lambda: len(room.asker.answered(prompts)) == 8)

    async def body() -> None:
        await with_worker(room, "one", first())
        assert not room.asker.answered(prompts)
        assert not streams.pending("prompts", "one"), "handed back, not left to be noticed"
        waiting = [entry.id for entry in streams.after("prompts", "0")]
        assert sorted(waiting) == sorted(prompt.id for prompt in prompts)
        await with_worker(room, "two", second())

    asyncio.run(body())
    assert {group.worker for group in room.asker.groups()} == {"two"}


def test_a_prompt_that_was_read_while_the_worker_was_told_to_leave_is_handed_back_too(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams, prompt = room.asker.streams, make_prompt([5])
    one = room.worker("one")
    read, reading, release = one._reader.read, threading.Event(), threading.Event()

    def slow_read(count: int, block_ms: int) -> list[Entry]:
        reading.set()
        release.wait(20)
        return read(count, block_ms)

    monkeypatch.setattr(one._reader, "read", slow_read)

    async def body() -> None:
        await room.push(0)
        task = asyncio.create_task(one.run())
        await until(reading.is_set)
        room.asker.issue([prompt])
        task.cancel()
        await asyncio.sleep(0)
        release.set()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(body())
    assert not streams.pending("prompts", "one")
    assert [entry.id for entry in streams.after("prompts", "0")] == [prompt.id]
    assert room.engine.calls == 0


def test_a_last_read_that_hangs_does_not_keep_a_worker_from_leaving(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "_LEAVE_SECONDS", 0.2)
    one = room.worker("one")

    async def body() -> None:
        await asyncio.wait_for(one.outbox.hand_back_all(asyncio.Future()), timeout=20)

    asyncio.run(body())
