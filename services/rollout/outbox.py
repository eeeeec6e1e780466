"""Where prompts go when this server is done with them: answered to the next stream, back, or to the dead.

Every step may be repeated, and of several servers that hold one prompt, only one's has an effect.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import redis

from services.rollout.metrics import RolloutMetrics
from shared.causes import CauseKind
from shared.codec import encode
from shared.entry import Entry
from shared.experience import Group
from shared.handing_back import hand_back, hand_back_all
from shared.outage import is_outage
from shared.stream import Move, Streams, parts

OUTAGE_SECONDS = 1.0
_LEAVE_SECONDS = 3.0

T = TypeVar("T")
log = logging.getLogger("rollstream")


class Outbox:
    """One worker's. It waits for a Redis that is away."""

    def __init__(self, streams: Streams, worker_id: str, metrics: RolloutMetrics) -> None:
        self.groups_delivered = 0
        self.tokens_generated = 0
        self.groups_dead = 0
        self._streams = streams
        self._worker_id = worker_id
        self._metrics = metrics
        self._ready: list[tuple[Move, asyncio.Future[bool]]] = []
        self._sending = asyncio.Lock()

    async def deliver(self, entry: Entry, group: Group, facts: Mapping[str, Any]) -> None:
        """Replace a prompt by its group on the next stream; `facts` are readable fields beside its own."""
        if await self._forward((entry, {**group.fields(), **facts}, encode(group))):
            self.groups_delivered += 1
            self.tokens_generated += group.tokens
            self._metrics.tokens.inc(group.tokens)
            self._metrics.groups.labels("delivered").inc()
        else:
            self._metrics.groups.labels("dropped").inc()

    async def _forward(self, move: Move) -> bool:
        """In one step with all that become ready while the step before it is under way."""
        moved: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._ready.append((move, moved))
        async with self._sending:
            if not moved.done():
                await self._send()
        return await moved

    async def _send(self) -> None:
        ready, self._ready = self._ready, []
        futures = [future for _, future in ready]
        try:
            moved = [
                each for part in parts([move for move, _ in ready]) for each in await self._send_part(part)
            ]
        except asyncio.CancelledError:
            self._ready = ready + self._ready  # the next to send takes them along: each goes on once
            raise
        except Exception as error:  # each of them is told
            for future in futures:
                if not future.done():
                    future.set_exception(error)
        else:
            for future, each in zip(futures, moved, strict=True):
                if not future.done():  # its delivery may have been cancelled
                    future.set_result(each)

    async def _send_part(self, moves: list[Move]) -> list[bool]:
        return await _until_redis_answers(lambda: self._streams.forward_all(moves, "prompts", "rollouts"))

    async def hand_back(self, entry: Entry) -> None:
        """Put a prompt at the end of its stream, where another server finds it and the prompts behind it come
        first. Nothing is put back if the learner has purged it meanwhile.
        """
        put_back = await _until_redis_answers(lambda: hand_back(self._streams, "prompts", entry))
        self._metrics.groups.labels("handed_back").inc(put_back)

    async def bury(self, entry: Entry, kind: CauseKind, cause: str, attempts: int) -> None:
        """Move a prompt to the dead letters."""
        log.error("id=%s cannot be answered: %s", entry.id, cause)
        if await _until_redis_answers(
            lambda: self._streams.dead_letter(
                entry, "prompts", "rollout", kind, cause, attempts, self._worker_id
            )
        ):
            self.groups_dead += 1
            self._metrics.groups.labels("dead").inc()
            self._metrics.dead_letters.labels(kind).inc()
        else:
            self._metrics.groups.labels("dropped").inc()

    async def hand_back_all(self, last_read: "asyncio.Future[Any] | None") -> None:
        """Everything that this worker was given and has not finished. Without Redis, others find it when the
        heartbeat's key has expired.

        Args:
            last_read: its thread cannot be stopped, and may still be given prompts.
        """
        try:
            async with asyncio.timeout(_LEAVE_SECONDS):
                if last_read:
                    await asyncio.wait([last_read])
                put_back = await asyncio.to_thread(hand_back_all, self._streams, "prompts", self._worker_id)
        except (TimeoutError, redis.RedisError) as error:
            log.warning("prompts are left to those who will notice that this server is gone: %r", error)
        else:
            self._metrics.groups.labels("handed_back").inc(put_back)
            log.info("handed %d prompts back", put_back)


async def _until_redis_answers(step: Callable[[], T]) -> T:
    """Repeat an idempotent step while Redis is away."""
    while True:
        try:
            return await asyncio.to_thread(step)
        except redis.RedisError as error:
            if not is_outage(error):
                raise
            log.warning("Redis cannot be used, trying again: %s", error)
            await asyncio.sleep(OUTAGE_SECONDS)
