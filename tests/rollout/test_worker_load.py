"""How many prompts a stream worker has in flight."""

import asyncio
from dataclasses import replace

import pytest

from services.rollout import worker
from services.rollout.engine import EngineLoad
from tests.rollout.asking import make_prompt
from tests.rollout.scripted import Room, until


def test_what_is_in_flight_is_a_number_that_any_thread_may_ask_for(room: Room) -> None:
    one = room.worker("one")
    assert "groups_in_flight" in vars(one), "kept, not counted over tasks that the event loop changes"

    async def body() -> None:
        await room.push(0)
        room.engine.gate.clear()
        room.asker.issue([make_prompt([5]) for _ in range(3)])
        task = asyncio.create_task(one.run())
        await until(lambda: one.groups_in_flight == 3)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert one.groups_in_flight == 0

    asyncio.run(body())


def test_a_worker_gives_the_engine_more_while_it_has_room_and_less_when_completions_wait(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_STEER_SECONDS", 0.02)
    one = room.worker("one", max_groups=40)
    assert one.groups_limit == 8

    async def body() -> None:
        await room.push(0)
        room.engine.gate.clear()
        room.asker.issue([make_prompt([5]) for _ in range(60)])
        task = asyncio.create_task(one.run())
        try:
            await until(lambda: one.groups_in_flight == 40)  # although none of the first has ended
            room.engine.busy = EngineLoad(
                steps=1, running=10, waiting=30, kv_cache_use=0.9, preempted=0, most_running=10
            )
            await until(lambda: one.groups_limit == 30)
            assert one.groups_in_flight == 40, "what is begun is not given up"
            room.engine.busy = EngineLoad(
                steps=1, running=10, waiting=0, kv_cache_use=0.5, preempted=0, most_running=10
            )
            room.engine.gate.set()
            await until(lambda: len(room.asker.groups()) == 60)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(body())


def test_a_batch_that_drains_while_the_engine_is_crowded_leaves_places_for_the_next(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_STEER_SECONDS", 60.0)
    one = room.worker("one")

    async def body() -> None:
        await room.push(0)
        room.engine.gate.clear()
        room.asker.issue([make_prompt([5]) for _ in range(4)])
        task = asyncio.create_task(one.run())
        try:
            await until(lambda: one.groups_in_flight == 4)
            room.engine.busy = replace(room.engine.busy, preempted=1)
            room.engine.gate.set()
            await until(lambda: one.groups_in_flight == 0)
            one._next_look = 0.0
            await until(lambda: one.load.preempted == 1)
            assert one.groups_limit == 3
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(body())
