"""Groups that are ready at the same time go on together, each with an effect of its own."""

import asyncio
import threading
from collections.abc import Sequence

import pytest
import redis

from services.rollout import outbox as outbox_module
from services.rollout.metrics import RolloutMetrics
from services.rollout.outbox import Outbox
from shared import stream
from shared.codec import encode
from shared.experience import Completion, Float32Array, Group, Int32Array, Prompt, Sampling, VersionSpan
from shared.reader import Reader
from shared.stream import Move, StreamName, Streams


class HeldStreams(Streams):
    """Lets the first step wait, and notes how many groups go in each."""

    def __init__(self, streams: Streams) -> None:
        super().__init__(streams.client, streams.run)
        self.sizes: list[int] = []
        self.go_on = threading.Event()
        self.error: Exception | None = None

    def forward_all(self, moves: Sequence[Move], source: StreamName, target: str) -> list[bool]:
        self.sizes.append(len(moves))
        assert self.go_on.wait(20)
        if self.error:
            raise self.error
        return super().forward_all(moves, source, target)


def make_group(name: str) -> Group:
    prompt = Prompt(
        id=name, epoch=0, index=0, n=1, issued_version=0, text=name, token_ids=Int32Array([1]),
        sampling=Sampling(max_tokens=4),
    )  # fmt: skip
    completion = Completion(
        token_ids=Int32Array([5]), logprobs=Float32Array([-1.0]), text="!", finish_reason="stop",
        version_spans=[VersionSpan(0, 1)],
    )  # fmt: skip
    return Group(prompt=prompt, completions=[completion], worker="w", weights_digest="d")


async def deliver_five(held: HeldStreams, outbox: Outbox) -> list[BaseException | None]:
    """The first is on its way before the others are ready."""
    groups = [make_group(f"id{number}") for number in range(5)]
    held.append_prompts([(group.prompt.fields(), encode(group.prompt)) for group in groups], 1)
    entries = Reader(held, "prompts", "w").read(5, 1000)
    steps = []
    for entry, group in zip(entries, groups, strict=True):
        steps.append(asyncio.create_task(outbox.deliver(entry, group, {"rollout_attempts": 1})))
        while not held.sizes:
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    held.go_on.set()
    return await asyncio.gather(*steps, return_exceptions=True)


def test_what_becomes_ready_during_a_step_goes_together_in_the_next(streams: Streams) -> None:
    held = HeldStreams(streams)
    outbox = Outbox(held, "w", RolloutMetrics())
    assert asyncio.run(deliver_five(held, outbox)) == [None] * 5
    assert held.sizes == [1, 4]
    assert (outbox.groups_delivered, outbox.tokens_generated) == (5, 5)
    rollouts = Reader(streams, "rollouts", "r").read(10, 1000)
    assert [rollout.id for rollout in rollouts] == [f"id{number}" for number in range(5)]
    assert streams.client.xlen(streams.key("prompts")) == 0


def test_an_error_of_a_step_is_told_to_each_of_its_groups(streams: Streams) -> None:
    held = HeldStreams(streams)
    held.error = redis.ResponseError("WRONGTYPE")
    outbox = Outbox(held, "w", RolloutMetrics())
    found = asyncio.run(deliver_five(held, outbox))
    assert [type(error) for error in found] == [redis.ResponseError] * 5
    assert outbox.groups_delivered == 0


def test_groups_whose_sender_is_cancelled_go_with_the_next_step(streams: Streams) -> None:
    held = HeldStreams(streams)
    outbox = Outbox(held, "w", RolloutMetrics())

    async def cancel_the_second() -> None:
        groups = [make_group(f"id{number}") for number in range(4)]
        streams.append_prompts([(group.prompt.fields(), encode(group.prompt)) for group in groups], 1)
        entries = Reader(streams, "prompts", "w").read(4, 1000)
        steps = []
        for entry, group in zip(entries, groups, strict=True):
            steps.append(asyncio.create_task(outbox.deliver(entry, group, {})))
            while not held.sizes:  # the first is under way, the others wait
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        held.go_on.set()
        await steps[0]
        while len(held.sizes) < 2:
            await asyncio.sleep(0)
        steps[1].cancel()
        await asyncio.wait_for(asyncio.gather(steps[2], steps[3]), 20)

    asyncio.run(cancel_the_second())
    assert [entry.id for entry in streams.tail("rollouts", 10)] == ["id0", "id1", "id2", "id3"]


def test_of_a_large_delivery_only_the_part_without_an_answer_is_repeated(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_STEP_BYTES", 1)
    monkeypatch.setattr(outbox_module, "OUTAGE_SECONDS", 0.01)

    class Away(HeldStreams):
        def forward_all(self, moves: Sequence[Move], source: StreamName, target: str) -> list[bool]:
            moved = super().forward_all(moves, source, target)
            if len(self.sizes) == 4:  # the third of the second step's four parts; it went through
                raise redis.ConnectionError("gone")
            return moved

    held = Away(streams)
    outbox = Outbox(held, "w", RolloutMetrics())
    assert asyncio.run(deliver_five(held, outbox)) == [None] * 5
    assert len(held.sizes) == 6 and outbox.groups_delivered == 4
    assert streams.client.xlen(streams.key("rollouts")) == 5


def test_a_group_that_another_server_delivered_is_not_counted(streams: Streams) -> None:
    held = HeldStreams(streams)
    held.go_on.set()
    outbox = Outbox(held, "w", RolloutMetrics())

    async def deliver_twice() -> None:
        group = make_group("id")
        streams.append_prompts([(group.prompt.fields(), encode(group.prompt))], 1)
        (entry,) = Reader(streams, "prompts", "w").read(1, 1000)
        await asyncio.gather(outbox.deliver(entry, group, {}), outbox.deliver(entry, group, {}))

    asyncio.run(deliver_twice())
    assert outbox.groups_delivered == 1 and outbox.tokens_generated == 1
