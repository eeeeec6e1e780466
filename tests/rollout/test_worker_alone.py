"""What the stream worker does when its engine or Redis fails: an engine that fails on command."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaForCausalLM

from services.rollout import outbox, worker
from services.rollout.engine import EngineDead, EngineLoad, ModelBroken, UpdateFailed
from services.rollout.metrics import RolloutMetrics
from services.rollout.weight_files import ModelShape
from services.rollout.weight_folder import WeightFolder
from services.rollout.weight_store import Conflict, WeightStore
from services.rollout.worker import ATTEMPTS, StreamWorker
from shared.entry import Entry
from shared.experience import Completion, Float32Array, Int32Array, Prompt, VersionSpan
from shared.reader import Reader
from shared.stream import Streams, connect
from tests.conftest import RedisServer
from tests.rollout.asking import Asker, make_prompt
from tests.rollout.server import make_update
from tests.rollout.tiny_model import tensors_of, varied

Models = tuple[Path, LlamaForCausalLM]


class ScriptedEngine:
    """Answers every prompt with its version, or raises what it is told to."""

    max_model_len = 512
    dtype = "float32"
    dead = False

    def __init__(self) -> None:
        self.version = -1
        self.calls = 0
        self.failures: list[Exception] = []
        self.update_failure: Exception | None = None
        self.busy = EngineLoad(steps=1, running=0, waiting=0, kv_cache_use=0.0, preempted=0, most_running=10)
        self.gate = asyncio.Event()
        self.gate.set()

    async def generate(self, prompt: Prompt) -> list[Completion]:
        self.calls += 1
        await self.gate.wait()
        if self.failures:
            raise self.failures.pop(0)
        spans = [VersionSpan(self.version, 1)]
        one = Completion(token_ids=Int32Array([5]), logprobs=Float32Array([-1.0]), text="!",
                         finish_reason="stop", version_spans=spans)  # fmt: skip
        return [one] * prompt.n

    def load(self) -> EngineLoad:
        return self.busy

    async def replace_weights(self, new: Sequence[Path], version: int, old: Sequence[Path]) -> None:
        assert all(path.is_file() for path in [*new, *old])
        if self.update_failure:
            raise self.update_failure
        self.version = version

    def close(self) -> None:
        return None


class Room:
    """A worker with a scripted engine and a real weight store on a real Redis."""

    def __init__(self, streams: Streams, models: Models, folder: Path) -> None:
        self.asker = Asker(streams)
        self.engine = ScriptedEngine()
        self.model = models[1]
        self.weights = WeightStore(self.engine, ModelShape(models[0]), WeightFolder(folder), RolloutMetrics())

    def worker(
        self, name: str, max_groups: int = 4, may_claim: Callable[[], bool] = lambda: True
    ) -> StreamWorker:
        return StreamWorker(
            self.asker.streams, name, self.engine, self.weights, max_groups, RolloutMetrics(), may_claim
        )

    async def push(
        self, version: int, epoch: int = 1, of: LlamaForCausalLM | None = None, replaces: str | None = None
    ) -> None:
        manifest, payloads = make_update(tensors_of(of or self.model), version, epoch)
        manifest = manifest.model_copy(update={"replaces": replaces})
        await self.weights.open(manifest)
        for part, payload in enumerate(payloads):

            async def chunks(data: bytes = payload) -> Any:
                yield data

            await self.weights.receive(version, part, chunks())
        await self.weights.commit(version)


async def until(condition: Callable[[], Any], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.01)


async def with_worker(room: Room, name: str, body: Coroutine[Any, Any, None]) -> None:
    task = asyncio.create_task(room.worker(name).run())
    try:
        await body
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def room(streams: Streams, tied_model: Models, tmp_path: Path) -> Iterator[Room]:
    made = Room(streams, tied_model, tmp_path)
    yield made
    made.weights.close()


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


def test_only_an_update_that_names_what_it_replaces_may_be_no_newer(room: Room) -> None:
    other = varied(room.model, seed=9)
    served, _ = make_update(tensors_of(room.model), 3)

    async def body() -> None:
        await room.push(3)
        for version in (2, 3):
            for replaces in (None, "of something else"):
                with pytest.raises(Conflict, match="superseded"):
                    await room.push(version, of=other, replaces=replaces)
        assert (room.weights.version, room.weights.divergences) == (3, 0)
        await room.push(2, of=other, replaces=served.digest)
        assert (room.weights.version, room.weights.divergences) == (2, 1)

    asyncio.run(body())


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
        (entry,) = Reader(streams, "prompts", "other").read(1, 100)
        streams.client.xclaim(streams.key("prompts"), "rollout", "other", 0, [entry.entry_id], idle=60_000,
                              justid=True)  # fmt: skip
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
    def fail(streams: Streams) -> set[str]:
        raise ValueError("a heartbeat that is no JSON")

    monkeypatch.setattr(worker, "alive_ids", fail)

    async def body() -> None:
        await room.push(0)
        with pytest.raises(ValueError, match="no JSON"):
            await asyncio.wait_for(room.worker("one").run(), timeout=20)

    asyncio.run(body())


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


def test_a_failed_update_keeps_the_old_version_and_a_broken_model_serves_none(room: Room) -> None:
    async def body() -> None:
        await room.push(0)
        room.engine.update_failure = UpdateFailed("bad tensor")
        with pytest.raises(UpdateFailed):
            await room.push(1)
        assert (room.weights.version, room.weights.status.state) == (0, "serving")
        room.engine.update_failure = ModelBroken("worse")
        with pytest.raises(ModelBroken):
            await room.push(2)
        assert (room.weights.version, room.weights.status.state) == (None, "broken")
        room.engine.update_failure = None
        await room.push(3)
        assert (room.weights.version, room.weights.status.state) == (3, "serving")

    asyncio.run(body())


def test_the_status_tells_the_learner_epoch_of_the_served_weights_not_of_arriving_ones(room: Room) -> None:
    def served() -> tuple[int | None, int | None]:
        return room.weights.status.version, room.weights.status.learner_epoch

    async def body() -> None:
        assert served() == (None, None)
        await room.push(4, epoch=1)
        manifest, _ = make_update(tensors_of(room.model), 2, epoch=2)
        await room.weights.open(manifest)
        assert served() == (4, 1)
        with pytest.raises(Conflict, match="epoch 2 has taken the run"):
            await room.push(5, epoch=1)
        await room.push(2, epoch=2)
        assert served() == (2, 2)

    asyncio.run(body())


def test_the_folder_of_a_dead_process_is_removed_and_that_of_a_live_one_kept(tmp_path: Path) -> None:
    left_over = tmp_path / "rollstream-weights-dead"
    left_over.mkdir()
    (left_over / "owner.lock").touch()
    live = WeightFolder(tmp_path)
    other = WeightFolder(tmp_path)
    assert live.path.is_dir() and other.path.is_dir() and not left_over.exists()
    live.close()
    other.close()
    assert not list(tmp_path.iterdir())
