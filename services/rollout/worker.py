"""The stream worker: takes prompts, lets the engine complete them, hands groups on.

An entry stays pending in Redis until its group is on the next stream, so a worker may die at any moment.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

import redis

from services.rollout.concurrency import Concurrency
from services.rollout.engine import Engine, EngineDead, PromptRefused, SomeFailed
from services.rollout.metrics import RolloutMetrics
from services.rollout.outbox import OUTAGE_SECONDS, Outbox
from services.rollout.weight_store import WeightStore
from shared.causes import CauseKind
from shared.codec import MalformedEntry, decode_prompt, intact_payload
from shared.entry import Entry
from shared.experience import Completion, Group, Prompt
from shared.reader import Reader
from shared.stream import QueueLost, Streams

ATTEMPTS = 3
"""How often a prompt is tried when the engine raises."""

HOLD_SECONDS = 0.5
"""How long a prompt of a newer version is held before it is handed back: the learner issues it when at least
one server has the version, and gives the others a moment."""

VERSION_SECONDS = 5.0
"""How long a server that is behind leaves the prompts to others before it tries one again."""

_BLOCK_MS = 500
_CLAIM_SECONDS = 2.0
_STEER_SECONDS = 0.25

log = logging.getLogger("rollstream")


class StreamWorker:
    """Keeps as many prompts in flight as the engine has room for, up to `max_groups`."""

    def __init__(
        self,
        streams: Streams,
        worker_id: str,
        engine: Engine,
        weights: WeightStore,
        max_groups: int,
        metrics: RolloutMetrics,
        may_claim: Callable[[], bool],
    ) -> None:
        """
        Args:
            may_claim: whether others may be taken for dead now, as `Heartbeat.is_steady` tells.
        """
        self.id = worker_id
        self.metrics = metrics
        self.outbox = Outbox(streams, worker_id, self.metrics)
        self._streams = streams
        self._reader = Reader(streams, "prompts", worker_id)
        self._engine = engine
        self._weights = weights
        self._concurrency = Concurrency(max_groups)
        self._may_claim = may_claim
        self.load = engine.load()
        self._was_full = False
        self._next_look = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self.groups_in_flight = 0
        """Prompts being answered: a number, because other threads ask."""
        self._most_in_flight = 0
        self._reading = asyncio.Lock()
        self._last_read: asyncio.Future[list[Entry]] | None = None
        self._too_new: int | None = None

    @property
    def groups_limit(self) -> int:
        """Prompts that may be in flight at once."""
        return self._concurrency.limit

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
                await self.outbox.hand_back_all(self._last_read)

    async def _take_prompts(self) -> None:
        while True:
            await self._leave_prompts_to_others()
            room = self.groups_limit - len(self._tasks)
            # A server that is behind takes one prompt at a time, until it finds one that it may answer.
            entries = await self._read(room if self._too_new is None else 1) if room > 0 else []
            for entry in entries:
                self._start(entry)
            await self._reap()
            self._steer()

    def _start(self, entry: Entry) -> None:
        task = asyncio.create_task(self._answer(entry))
        self._tasks.add(task)
        self.groups_in_flight += 1
        self._most_in_flight = max(self._most_in_flight, self.groups_in_flight)
        task.add_done_callback(self._count_one_less)

    def _count_one_less(self, _: "asyncio.Task[None]") -> None:
        self.groups_in_flight -= 1

    def _steer(self) -> None:
        """Let the engine's load of the last interval decide how many prompts it is given."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _STEER_SECONDS
        self.load = self._engine.load()
        self._concurrency.observe(self.load, self._most_in_flight, self._was_full)
        self._was_full, self._most_in_flight = False, self.groups_in_flight

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

    async def _read(self, count: int) -> list[Entry]:
        try:
            async with self._reading:
                self._last_read = asyncio.ensure_future(
                    asyncio.to_thread(self._reader.read, count, _BLOCK_MS)
                )
                return await asyncio.shield(self._last_read)
        except QueueLost as error:
            log.error("%s; waiting for the learner to issue its prompts again", error)
        except redis.RedisError as error:
            log.warning("Redis cannot be read, trying again: %s", error)
            self._reader.sweep_now()
            await asyncio.sleep(OUTAGE_SECONDS)
        return []

    async def _reap(self) -> None:
        """Collect finished tasks. While all places are taken, wait for one to finish or for more places."""
        full = len(self._tasks) >= self.groups_limit
        if full:
            self._was_full = True
            await asyncio.wait(self._tasks, timeout=_STEER_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        for task in [task for task in self._tasks if task.done()]:
            self._tasks.remove(task)
            task.result()

    async def _claim(self) -> None:
        """Take over what dead workers have left, and look for it."""
        while True:
            try:
                if self._may_take_over and (claimed := await asyncio.to_thread(self._claim_once)):
                    log.info("took over %d prompts of dead workers", claimed)
                    self.metrics.taken_over.inc(claimed)
                    text = f"{self.id} took over {claimed} prompts of dead workers"
                    await asyncio.to_thread(self._streams.event, "taken_over", "rollout", text)
                    self._reader.sweep_now()
            except redis.RedisError as error:
                log.warning("Redis cannot be asked for dead workers, trying again: %s", error)
            await asyncio.sleep(_CLAIM_SECONDS)

    @property
    def _may_take_over(self) -> bool:
        """Whether there are dead, and it would not hold what they left until it serves the right version."""
        return self._may_claim() and self._weights.version is not None and self._too_new is None

    def _claim_once(self) -> int:
        return self._streams.claim_from_the_dead("prompts", self.id)

    async def _answer(self, entry: Entry) -> None:
        """Forward a prompt's group, hand the prompt back, or bury the entry with its cause."""
        taken = time.monotonic()
        try:
            prompt = decode_prompt(intact_payload(entry))
            served = await self._comes_to_serve(prompt.issued_version, HOLD_SECONDS)
            self._too_new = None if served else prompt.issued_version
            divergences = self._weights.divergences
            answer = await self._generate(prompt) if served else None
        except (MalformedEntry, PromptRefused) as error:
            kind: CauseKind = "malformed" if isinstance(error, MalformedEntry) else "refused"
            await self.outbox.bury(entry, kind, str(error), attempts=1)
        except EngineDead:
            raise
        except Exception as error:  # whatever the engine raised, ATTEMPTS times
            await self.outbox.bury(entry, "failed", f"{type(error).__name__}: {error}", ATTEMPTS)
        else:
            if answer is None:
                log.info("id=%s asks for version %d, handing it back", prompt.id, prompt.issued_version)
                await self._hand_back(entry)
            elif divergences != self._weights.divergences:
                log.warning("id=%s was answered by weights that had diverged, handing it back", prompt.id)
                await self._hand_back(entry)
            else:
                group, attempts = answer
                seconds = f"{time.monotonic() - taken:.3f}"
                facts = {"rollout_seconds": seconds, "rollout_attempts": attempts}
                await self.outbox.deliver(entry, group, facts)
        self._reader.done(entry)

    async def _generate(self, prompt: Prompt) -> tuple[Group, int]:
        """The group, and how many attempts it took. What also the last one did not bring is left out, but for
        a held-out group, whose accuracy is that of all its completions."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                with self.metrics.generate_seconds.time():
                    return self._group(prompt, await self._engine.generate(prompt)), attempt
            except (PromptRefused, EngineDead):
                raise
            except Exception as error:
                log.warning("id=%s failed, attempt %d of %d: %r", prompt.id, attempt, ATTEMPTS, error)
                if attempt == ATTEMPTS:
                    if isinstance(error, SomeFailed) and error.completions and prompt.purpose == "train":
                        log.warning("id=%s goes on without %s", prompt.id, error)
                        return self._group(prompt, error.completions, error.causes), attempt
                    raise
        raise AssertionError("the last attempt returned or raised")

    def _group(self, prompt: Prompt, completions: list[Completion], failed: Sequence[str] = ()) -> Group:
        last_version = max(span.version for completion in completions for span in completion.version_spans)
        digest = self._weights.digest(last_version)
        return Group(
            prompt=prompt, completions=completions, worker=self.id, weights_digest=digest, failed=list(failed)
        )

    async def _hand_back(self, entry: Entry) -> None:
        async with self._reading:  # a read that still waits here would get the prompt at once
            await self.outbox.hand_back(entry)
