"""The stream worker: takes prompts, lets the engine complete them, hands groups on.

An entry stays pending in Redis until its group is on the next stream, so a worker may die at any moment.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

import redis

from services.rollout.engine import Engine, EngineDead, PromptRefused
from services.rollout.metrics import RolloutMetrics
from services.rollout.weight_store import WeightStore
from shared.codec import MalformedEntry, decode_prompt, encode, intact_payload
from shared.entry import Entry, parse_entry
from shared.experience import Completion, Group, Prompt
from shared.outage import is_outage
from shared.reader import Reader
from shared.stream import QueueLost, Streams
from shared.workers import alive_ids

ATTEMPTS = 3
"""How often a prompt is tried when the engine raises."""

HOLD_SECONDS = 0.5
"""How long a prompt of a newer version is held before it is handed back: the learner issues it when at least
one server has the version, and gives the others a moment."""

VERSION_SECONDS = 5.0
"""How long a server that is behind leaves the prompts to others before it tries one again."""

_BLOCK_MS = 500
_CLAIM_SECONDS = 2.0
_OUTAGE_SECONDS = 1.0

T = TypeVar("T")
log = logging.getLogger("rollstream")


class StreamWorker:
    """Keeps up to `max_groups` prompts in flight."""

    def __init__(
        self,
        streams: Streams,
        worker_id: str,
        engine: Engine,
        weights: WeightStore,
        max_groups: int,
        metrics: RolloutMetrics | None = None,
    ) -> None:
        self.id = worker_id
        self.metrics = metrics or RolloutMetrics()
        self.groups_done = 0
        self.tokens_generated = 0
        self.dead_lettered = 0
        self._streams = streams
        self._reader = Reader(streams, "prompts", worker_id)
        self._engine = engine
        self._weights = weights
        self._max_groups = max_groups
        self._tasks: set[asyncio.Task[None]] = set()
        self._reading = asyncio.Lock()
        self._last_read: asyncio.Future[list[Entry]] | None = None
        self._too_new: int | None = None

    @property
    def groups_in_flight(self) -> int:
        return sum(not task.done() for task in self._tasks)

    async def run(self) -> None:
        """Work until cancelled; then hand back what is unfinished, for others to take at once.

        Raises:
        EngineDead: nothing more can be generated here. What is unfinished stays pending, so that it counts
        as one more delivery of a prompt that may kill engines.
        """
        await self._weights.wait_for(0)
        loops = [asyncio.create_task(self._take_prompts()), asyncio.create_task(self._claim())]
        leaving = False
        try:
            ended, _ = await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
            for loop in ended:
                loop.result()
        except asyncio.CancelledError:
            leaving = True
            raise
        finally:
            started = [*loops, *self._tasks]
            for task in started:
                task.cancel()
            await asyncio.gather(*started, return_exceptions=True)
            if leaving and not self._engine.dead:
                await self._hand_back_all()

    async def _take_prompts(self) -> None:
        while True:
            await self._leave_prompts_to_others()
            for entry in await self._read():
                self._tasks.add(asyncio.create_task(self._answer(entry)))
            await self._reap()

    async def _leave_prompts_to_others(self) -> None:
        """After handing a prompt back, read none until its version is served here or others had time."""
        if self._too_new is not None and await self._comes_to_serve(self._too_new, VERSION_SECONDS):
            self._too_new = None

    async def _comes_to_serve(self, version: int, seconds: float) -> bool:
        """Whether `version` or a later one is served within that time."""
        try:
            async with asyncio.timeout(seconds):
                await self._weights.wait_for(version)
        except TimeoutError:
            return False
        return True

    async def _read(self) -> list[Entry]:
        # A server that is behind takes one prompt at a time, until it finds one that it may answer.
        free = 1 if self._too_new is not None else self._max_groups - len(self._tasks)
        try:
            async with self._reading:
                self._last_read = asyncio.ensure_future(asyncio.to_thread(self._reader.read, free, _BLOCK_MS))
                return await asyncio.shield(self._last_read)
        except QueueLost as error:
            log.error("%s; waiting for the learner to issue its prompts again", error)
        except redis.RedisError as error:
            log.warning("Redis cannot be read, trying again: %s", error)
            self._reader.sweep_now()
            await asyncio.sleep(_OUTAGE_SECONDS)
        return []

    async def _reap(self) -> None:
        """Collect finished tasks; wait for one if all places are taken."""
        full = len(self._tasks) >= self._max_groups
        if full:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in [task for task in self._tasks if task.done()]:
            self._tasks.remove(task)
            task.result()

    async def _claim(self) -> None:
        """Take over what dead workers have left, and look for it."""
        while True:
            try:
                alive = await asyncio.to_thread(alive_ids, self._streams)
                claimed = await asyncio.to_thread(
                    self._streams.claim_from_the_dead, "prompts", self.id, alive | {self.id}
                )
                if claimed:
                    log.info("took over %d prompts of dead workers", claimed)
                    self.metrics.taken_over.inc(claimed)
                    text = f"{self.id} took over {claimed} prompts of dead workers"
                    await asyncio.to_thread(self._streams.event, "taken_over", "rollout", text)
                    self._reader.sweep_now()
            except redis.RedisError as error:
                log.warning("Redis cannot be asked for dead workers, trying again: %s", error)
            await asyncio.sleep(_CLAIM_SECONDS)

    async def _answer(self, entry: Entry) -> None:
        """Forward a prompt's group, hand the prompt back, or bury the entry with its cause."""
        taken = time.monotonic()
        try:
            prompt = decode_prompt(intact_payload(entry))
            served = await self._comes_to_serve(prompt.issued_version, HOLD_SECONDS)
            divergences = self._weights.divergences
            answer = await self._generate(prompt) if served else None
        except (MalformedEntry, PromptRefused) as error:
            kind = "malformed" if isinstance(error, MalformedEntry) else "refused"
            await self._bury(entry, kind, str(error), attempts=1)
        except EngineDead:
            raise
        except Exception as error:  # whatever the engine raised, ATTEMPTS times
            await self._bury(entry, "failed", f"{type(error).__name__}: {error}", ATTEMPTS)
        else:
            if answer is None:
                log.info("id=%s asks for version %d, handing it back", prompt.id, prompt.issued_version)
                self._too_new = prompt.issued_version
                await self._hand_back(entry)
            elif divergences != self._weights.divergences:
                log.warning("id=%s was answered by weights that had diverged, handing it back", prompt.id)
                await self._hand_back(entry)
            else:
                completions, attempts = answer
                seconds = f"{time.monotonic() - taken:.3f}"
                facts = {"rollout_seconds": seconds, "rollout_attempts": attempts}
                await self._forward(entry, prompt, completions, facts)
        self._reader.done(entry)

    async def _generate(self, prompt: Prompt) -> tuple[list[Completion], int]:
        """The completions, and how many attempts they took."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                with self.metrics.generate_seconds.time():
                    return await self._engine.generate(prompt), attempt
            except (PromptRefused, EngineDead):
                raise
            except Exception as error:
                log.warning("id=%s failed, attempt %d of %d: %r", prompt.id, attempt, ATTEMPTS, error)
                if attempt == ATTEMPTS:
                    raise
        raise AssertionError("the last attempt returned or raised")

    async def _forward(
        self, entry: Entry, prompt: Prompt, completions: list[Completion], facts: dict[str, Any]
    ) -> None:
        last_version = max(span.version for completion in completions for span in completion.version_spans)
        group = Group(
            prompt=prompt,
            completions=completions,
            worker=self.id,
            weights_digest=self._weights.digest(last_version),
        )
        fields, payload = group.fields() | facts, encode(group)
        delivered = await self._until_redis_answers(
            lambda: self._streams.forward(entry, "prompts", "rollouts", fields, payload)
        )
        if delivered:
            self.groups_done += 1
            self.tokens_generated += group.tokens
            self.metrics.tokens.inc(group.tokens)
            self.metrics.groups.labels("delivered").inc()
        else:
            self.metrics.duplicates.inc()

    async def _hand_back(self, entry: Entry) -> None:
        """Put a prompt at the end of its stream, where another server finds it and the prompts behind it come
        first. Nothing is put back if the learner has purged it meanwhile.
        """
        async with self._reading:  # a read that still waits here would get the prompt at once
            await self._until_redis_answers(lambda: self._put_back(entry))

    async def _hand_back_all(self) -> None:
        """Before leaving. Without Redis, others find what is pending when the heartbeat's key has expired."""
        if self._last_read:
            await asyncio.wait(
                [self._last_read]
            )  # its thread cannot be stopped, and may still be given prompts
        try:
            handed_back = await asyncio.to_thread(self._put_back_pending)
        except redis.RedisError as error:
            log.warning("prompts are left to those who will notice that this server is gone: %s", error)
        else:
            log.info("handed %d prompts back", handed_back)

    def _put_back_pending(self) -> int:
        streams, key = self._streams, self._streams.key("prompts")
        ids = [item["message_id"] for item in streams.pending("prompts", self.id)]
        found: list[Any] = [item for id in ids for item in streams.client.xrange(key, min=id, max=id) or ()]
        return sum(self._put_back(parse_entry(item)) for item in found)

    def _put_back(self, entry: Entry) -> bool:
        put_back = self._streams.forward(entry, "prompts", "prompts", entry.fields, entry.payload)
        if put_back:
            self.metrics.groups.labels("handed_back").inc()
        return put_back

    async def _bury(self, entry: Entry, kind: str, cause: str, attempts: int) -> None:
        log.error("id=%s cannot be answered: %s", entry.id, cause)
        await self._until_redis_answers(
            lambda: self._streams.dead_letter(entry, "prompts", "rollout", cause, attempts, self.id)
        )
        self.dead_lettered += 1
        self.metrics.groups.labels("dead").inc()
        self.metrics.dead_letters.labels(kind).inc()

    async def _until_redis_answers(self, step: Callable[[], T]) -> T:
        """Repeat an idempotent step while Redis is away."""
        while True:
            try:
                return await asyncio.to_thread(step)
            except redis.RedisError as error:
                if not is_outage(error):
                    raise
                log.warning("Redis cannot be used, trying again: %s", error)
                await asyncio.sleep(_OUTAGE_SECONDS)
