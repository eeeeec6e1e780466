"""Which prompts a stream worker answers, by the versions of its weights and of the prompts."""

import asyncio
from pathlib import Path

import pytest

from services.rollout import worker
from shared.reader import Reader
from tests.rollout.asking import make_prompt
from tests.rollout.scripted import Models, Room, until, with_worker
from tests.rollout.server import make_update
from tests.rollout.tiny_model import tensors_of, varied


def test_nothing_is_admitted_or_delivered_while_the_weights_have_diverged(room: Room) -> None:
    held, later = make_prompt([5], issued_version=3), make_prompt([6], issued_version=3)
    wrong, _ = make_update(tensors_of(room.model), 3)
    right, _ = make_update(tensors_of(varied(room.model, seed=9)), 3)
    right = right.model_copy(update={"replaces": wrong.digest})
    one = room.worker("one")

    async def body() -> None:
        await room.push(3)
        task = asyncio.create_task(one.run())
        try:
            room.engine.gate.clear()
            room.asker.issue([held])
            await until(lambda: room.engine.calls == 1)
            await room.weights.open(right)
            assert (room.weights.version, room.weights.status.state) == (None, "diverged")
            room.asker.issue([later])
            room.engine.gate.set()
            handed_back = one.metrics.groups.labels("handed_back")
            await until(lambda: handed_back._value.get() >= 2)
            assert not room.asker.groups() and room.engine.calls == 1
            await room.push(3, of=varied(room.model, seed=9), replaces=wrong.digest)
            assert (room.weights.version, room.weights.status.state) == (3, "serving")
            await until(lambda: len(room.asker.answered([held, later])) == 2)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(body())
    assert {group.weights_digest for group in room.asker.groups()} == {right.digest}


def test_a_server_that_is_behind_hands_newer_prompts_back_and_answers_those_behind_them(
    room: Room, tied_model: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "VERSION_SECONDS", 0.3)
    monkeypatch.setattr(worker, "HOLD_SECONDS", 0.1)
    newer = [make_prompt([5], issued_version=1) for _ in range(6)]
    present = [make_prompt([5], issued_version=0) for _ in range(3)]
    streams = room.asker.streams
    ahead = Room(streams, tied_model, tmp_path / "ahead")

    async def behind_alone() -> None:
        await room.push(0)
        room.asker.issue([*newer, *present])
        await until(lambda: len(room.asker.answered(present)) == 3)
        assert not room.asker.answered(newer)
        await ahead.push(1)
        await with_worker(ahead, "ahead", until(lambda: len(room.asker.answered(newer)) == 6))

    asyncio.run(with_worker(room, "behind", behind_alone()))
    ahead.weights.close()
    by_worker = {group.prompt.id: group.worker for group in room.asker.groups()}
    assert {by_worker[prompt.id] for prompt in newer} == {"ahead"}
    assert {by_worker[prompt.id] for prompt in present} == {"behind"}
    assert len(room.asker.groups()) == 9 and not streams.after("prompts", "0")


@pytest.mark.parametrize("cause", ["behind", "diverged"])
def test_a_server_without_the_right_version_takes_nothing_over_until_it_has_it(
    room: Room, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    """It would hold the dead's prompts for seconds each, while others could answer them."""
    monkeypatch.setattr(worker, "_CLAIM_SECONDS", 0.02)
    monkeypatch.setattr(worker, "VERSION_SECONDS", 0.05)
    monkeypatch.setattr(worker, "HOLD_SECONDS", 0.02)
    streams = room.asker.streams
    served, _ = make_update(tensors_of(room.model), 0)
    right, _ = make_update(tensors_of(varied(room.model, seed=9)), 1)
    asked: list[bool] = []

    def may_claim() -> bool:
        asked.append(ready)
        return ready

    one, ready = room.worker("one", may_claim=may_claim), False
    handed_back = one.metrics.groups.labels("handed_back")

    async def body() -> None:
        nonlocal ready
        await room.push(0)
        room.asker.issue([make_prompt([5])])
        assert Reader(streams, "prompts", "dead").read(1, 1)
        task = asyncio.create_task(one.run())
        try:
            await until(lambda: asked)
            if cause == "diverged":
                await room.weights.open(right.model_copy(update={"replaces": served.digest}))
            room.asker.issue([make_prompt([5], issued_version=1)])
            await until(lambda: handed_back._value.get() >= 1)
            ready = True
            await until(lambda: asked.count(True) >= 5)
            assert streams.pending("prompts", "dead"), "left to those who have the version"
            await room.push(1, of=varied(room.model, seed=9), replaces=served.digest)
            await until(lambda: not streams.pending("prompts", "dead"))
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(body())


def test_a_prompt_that_was_purged_while_it_was_held_is_not_put_back(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "VERSION_SECONDS", 0.3)
    streams = room.asker.streams
    one = room.worker("one")

    async def body() -> None:
        await room.push(0)
        room.asker.issue([make_prompt([5], issued_version=1)])
        task = asyncio.create_task(one.run())
        try:
            await until(lambda: one.groups_in_flight == 1)
            await asyncio.to_thread(streams.forget_run, 1 << 30)
            await until(lambda: one.groups_in_flight == 0)
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(body())
    assert not streams.after("prompts", "0") and not streams.after("dead", "0")
