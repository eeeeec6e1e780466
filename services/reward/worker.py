"""The stream door: scores groups of `rollouts` and hands them to `experiences`, or to `dead` with a cause."""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, TypeVar

import redis

from services.reward.attempt import Attempt, score_item
from services.reward.config import RewardConfig
from services.reward.core import ScoringCore
from services.reward.kept import Kept
from services.reward.metrics import Metrics
from shared.causes import CauseKind
from shared.codec import MalformedEntry, decode_group, encode, intact_payload
from shared.entry import Entry
from shared.experience import Group
from shared.handing_back import hand_back_all
from shared.reader import Reader
from shared.scoring import ScoreResult
from shared.stream import Move, QueueLost, Streams, parts
from shared.workers import Heartbeat, worker_id

log = logging.getLogger("rollstream")
T = TypeVar("T")

BLOCK_MS = 500
"""How long a read waits for entries while nothing else is to be done."""
TURN_SECONDS = 0.02
"""How long it waits for a group's scores before it looks for new entries."""
CLAIM_SECONDS = 5.0
OUTAGE_SECONDS = 0.5
"""Pause between tries while Redis does not answer."""

KIND_OF_STATUS: dict[str, CauseKind] = {"invalid": "refused", "error": "failed", "timeout": "timeout"}
"""What kind of cause each status of a failure is."""


class Stopped(Exception):
    """`stop` was called while Redis did not answer."""


class Worker:
    """Scores groups until it is stopped. `run` occupies a thread; the other methods are for other threads.

    Threads of its own score up to `concurrent_groups` groups at a time, so that a slow one holds up no other;
    only the thread of `run` speaks to Redis. It takes no more groups than it can work on at once: the rest is
    for other replicas.

    It keeps nothing that another replica could not do again: an entry leaves `rollouts` in the same step that
    puts it on the next stream, and the scores of a group that needs another attempt are in Redis.
    """

    def __init__(
        self,
        streams: Streams,
        core: ScoringCore,
        config: RewardConfig,
        metrics: Metrics,
        facts: Callable[[], dict[str, Any]],
    ) -> None:
        """
        Args:
            facts: for the heartbeat, beside its own counts.
        """
        self.id = worker_id("reward")
        self.outage: str | None = "not started"
        """Why it is not working; None while it is."""
        self.failed = False
        """Whether `run` ended by an error of ours."""
        self._counts = {"groups_delivered": 0, "groups_dead": 0}
        self._streams = streams
        self._core = core
        self._config = config
        self._metrics = metrics
        self._threads = ThreadPoolExecutor(config.concurrent_groups, "score")
        self._scoring: dict[Future[None], Attempt] = {}
        self._reader = Reader(streams, "rollouts", self.id)
        self._heartbeat = Heartbeat(streams, "reward", self.id, lambda: {**facts(), **self._counts})
        self._retries: list[Attempt] = []
        self._scored: list[Move] = []
        self._kept = Kept(streams, config)
        self._kept_of: list[Entry] = []
        """Entries that go on, whose scores need not be kept any more."""
        self._next_claim = 0.0
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Let `run` return at once; what it still holds goes to other replicas."""
        self._stopping.set()

    def run(self) -> None:
        """Work until `stop`; wait through outages of Redis."""
        try:
            self._insist(self._heartbeat.start)
            while not self._stopping.is_set():
                for attempt in self._next_attempts():
                    self._scoring[self._threads.submit(self._process, attempt)] = attempt
                try:
                    for future in wait(self._scoring, TURN_SECONDS, FIRST_COMPLETED).done:
                        attempt = self._scoring.pop(future)
                        future.result()  # an error of ours ends the worker
                        self._settle(attempt)
                finally:
                    self._hand_on()
            self._hand_back()
        except Stopped:
            pass
        except Exception:
            self.failed = True
            raise
        finally:
            self.outage = "stopped"
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._leave()

    def _next_attempts(self) -> list[Attempt]:
        now = time.monotonic()
        if now >= self._next_claim:
            self._next_claim = now + CLAIM_SECONDS
            self._insist(self._claim)
        due = [attempt for attempt in self._retries if attempt.due <= now]
        self._retries = [attempt for attempt in self._retries if attempt.due > now]
        free = self._config.concurrent_groups - len(self._scoring) - len(due) - len(self._retries)
        if free < 1:
            if not due and not self._scoring:
                self._stopping.wait(TURN_SECONDS)
            return due
        block_ms = 1 if due or self._scoring else 20 if self._retries else BLOCK_MS
        entries = self._insist(lambda: self._read(free, block_ms))
        return due + self._insist(lambda: self._kept.recall(entries))

    def _claim(self) -> None:
        if not self._heartbeat.is_steady:
            return
        if claimed := self._streams.claim_from_the_dead("rollouts", self.id):
            self._reader.sweep_now()
            log.info("took over %d groups of dead workers", claimed)
            self._metrics.taken_over.inc(claimed)
            text = f"{self.id} took over {claimed} groups of dead workers"
            self._streams.event("taken_over", "reward", text)

    def _read(self, count: int, block_ms: int) -> list[Entry]:
        try:
            return self._reader.read(count, block_ms)
        except QueueLost as loss:
            log.warning("%s; it has been created anew", loss)
            return []

    def _process(self, attempt: Attempt) -> None:
        """In a thread of its own: decode the entry and score what is not scored yet."""
        if attempt.group is None:
            try:
                attempt.group = decode_group(intact_payload(attempt.entry))
            except MalformedEntry as error:
                attempt.malformed = str(error)
                return
            attempt.results = [attempt.kept.get(number) for number in range(len(attempt.group.completions))]
        missing = [number for number, result in enumerate(attempt.results) if result is None]
        items = [score_item(attempt.group.prompt, attempt.group.completions[number]) for number in missing]
        for number, result in zip(missing, self._core.score(items), strict=True):
            attempt.results[number] = result

    def _settle(self, attempt: Attempt) -> None:
        """Forward the group, bury it, or note it for another attempt."""
        if attempt.malformed:
            return self._bury(attempt, "malformed", attempt.malformed)
        assert attempt.group
        results = [result for result in attempt.results if result is not None]
        failures = {number: result for number, result in enumerate(results) if result.status != "ok"}
        # What is invalid would be invalid again.
        again = [number for number, result in failures.items() if result.status != "invalid"]
        if again:
            self._metrics.failed_attempts.labels(KIND_OF_STATUS[failures[again[0]].status]).inc()
            attempt.kept = {n: result for n, result in enumerate(results) if n not in failures}
            self._insist(lambda: self._kept.keep(attempt))
        if not again or attempt.number >= self._config.max_attempts:
            return self._conclude(attempt, attempt.group, results, failures)
        missing = f"{len(again)} of {len(results)} completions not scored"
        cause = f"{again[0]}: {failures[again[0]].error}"
        log.warning("id=%s attempt %d: %s; %s", attempt.entry.id, attempt.number, missing, cause)
        for number in again:
            attempt.results[number] = None
        attempt.due = time.monotonic() + self._config.retry_seconds * 2 ** (attempt.number - 1)
        attempt.number += 1
        self._retries.append(attempt)

    def _conclude(
        self, attempt: Attempt, group: Group, results: list[ScoreResult], failures: dict[int, ScoreResult]
    ) -> None:
        """Forward what is scored. A group without any score is buried, and so is a part of a held-out one,
        whose accuracy is that of all its completions."""
        causes = [f"{number}: {result.error}" for number, result in failures.items()]
        if failures and (len(failures) == len(results) or group.prompt.purpose == "eval"):
            cause = f"{len(failures)} of {len(results)} completions not scored; {causes[0]}"
            return self._bury(attempt, KIND_OF_STATUS[next(iter(failures.values())).status], cause)
        for completion, result in zip(group.completions, results, strict=True):
            completion.reward, completion.components = result.reward, result.components
            completion.step_rewards = result.step_rewards or []
        if failures:
            group.failed += causes
            group.completions = [c for number, c in enumerate(group.completions) if number not in failures]
            log.warning("id=%s goes on without %s", group.prompt.id, "; ".join(causes))
        self._forward(attempt, group)

    def _forward(self, attempt: Attempt, group: Group) -> None:
        entry, seconds = attempt.entry, f"{time.monotonic() - attempt.taken:.3f}"
        facts = {"reward_worker": self.id, "reward_seconds": seconds, "reward_attempts": attempt.number}
        self._scored.append((entry, group.fields() | facts, encode(group)))
        if attempt.kept:
            self._kept_of.append(entry)

    def _hand_on(self) -> None:
        """Forward what was scored since the last time."""
        scored, self._scored = self._scored, []
        for part in parts(scored):
            moved = self._insist(partial(self._forward_part, part))
            self._counts["groups_delivered"] += sum(moved)
            self._metrics.groups.labels("delivered").inc(sum(moved))
            self._metrics.groups.labels("dropped").inc(len(moved) - sum(moved))
            for entry, _, _ in part:
                self._reader.done(entry)
        kept, self._kept_of = self._kept_of, []
        self._insist(lambda: self._kept.forget(kept))

    def _forward_part(self, part: list[Move]) -> list[bool]:
        return self._streams.forward_all(part, "rollouts", "experiences")

    def _bury(self, attempt: Attempt, kind: CauseKind, cause: str) -> None:
        entry, number = attempt.entry, attempt.number
        dead = self._insist(
            lambda: self._streams.dead_letter(entry, "rollouts", "reward", kind, cause, number, self.id)
        )
        self._counts["groups_dead"] += dead
        self._metrics.groups.labels("dead" if dead else "dropped").inc()
        self._metrics.dead_letters.labels(kind).inc(dead)
        self._reader.done(entry)
        log.warning("id=%s is dead after %d attempts: %s", entry.id, number, cause)

    def _insist(self, operation: Callable[[], T]) -> T:
        """The result of a repeatable operation, tried until Redis answers; an outage is told once.

        Raises:
        Stopped: it did not answer before `stop`.
        """
        told = False
        while True:
            try:
                result = operation()
            except redis.RedisError as error:
                self.outage = f"Redis cannot be used: {error}"
                if not told:
                    log.warning("%s; waiting for it", self.outage)
                    told = True
                self._reader.sweep_now()  # the reply that was lost may have held entries
                if self._stopping.wait(OUTAGE_SECONDS):
                    raise Stopped from error
            else:
                if told:
                    log.info("Redis is back")
                self.outage = None
                return result

    def _hand_back(self) -> None:
        """A polite stop costs the groups in hand no delivery. An error of ours does: they may be why."""
        try:
            put_back = hand_back_all(self._streams, "rollouts", self.id)
        except redis.RedisError as error:
            log.warning("groups are left to those who will notice that this worker is gone: %s", error)
        else:
            self._metrics.groups.labels("handed_back").inc(put_back)
            log.info("handed %d groups back", put_back)

    def _leave(self) -> None:
        try:
            self._heartbeat.stop()
        except redis.RedisError as error:
            log.warning("could not sign off, the heartbeat will expire: %s", error)
