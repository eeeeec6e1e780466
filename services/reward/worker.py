"""The stream door: scores groups of `rollouts` and hands them to `experiences`, or to `dead` with a cause."""

import dataclasses
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import redis

from services.reward.core import ScoringCore
from shared.codec import MalformedEntry, decode_group, encode
from shared.experience import Group
from shared.reader import Reader
from shared.scoring import ScoreItem, ScoreResult
from shared.stream import Entry, QueueLost, Streams
from shared.workers import Heartbeat, alive_ids, worker_id

log = logging.getLogger("rollstream")
T = TypeVar("T")

BATCH = 64
"""Groups taken at a time."""
BLOCK_MS = 500
CLAIM_SECONDS = 5.0
OUTAGE_SECONDS = 0.5
"""Pause between tries while Redis does not answer."""


@dataclasses.dataclass
class Attempt:
    """One scoring of one entry, not before `due` (monotonic seconds)."""

    entry: Entry
    number: int = 1
    due: float = 0.0


class Stopped(Exception):
    """`stop` was called while Redis did not answer."""


class Worker:
    """Scores groups until it is stopped. `run` occupies a thread; the other methods are for other threads.

    It keeps nothing that another replica could not do again: an entry leaves `rollouts` in the same step that
    puts it on the next stream.
    """

    def __init__(
        self,
        streams: Streams,
        core: ScoringCore,
        max_attempts: int,
        retry_seconds: float,
        facts: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        self.id = worker_id("reward")
        self.outage: str | None = "not started"
        """Why it is not working; None while it is."""
        self.failed = False
        """Whether `run` ended by an error of ours."""
        self._counts = {"groups_scored": 0, "groups_buried": 0}
        self._streams = streams
        self._core = core
        self._max_attempts = max_attempts
        self._retry_seconds = retry_seconds
        self._reader = Reader(streams, "rollouts", self.id)
        self._heartbeat = Heartbeat(streams, "reward", self.id, lambda: {**facts(), **self._counts})
        self._retries: list[Attempt] = []
        self._next_claim = 0.0
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Let `run` return after the group at hand; what it still holds goes to other replicas."""
        self._stopping.set()

    def run(self) -> None:
        """Work until `stop`; wait through outages of Redis."""
        try:
            self._insist(self._heartbeat.start)
            while not self._stopping.is_set():
                for attempt in self._next_attempts():
                    if self._stopping.is_set():
                        break
                    self._process(attempt)
        except Stopped:
            pass
        except Exception:
            self.failed = True
            raise
        finally:
            self.outage = "stopped"
            self._leave()

    def _next_attempts(self) -> list[Attempt]:
        now = time.monotonic()
        if now >= self._next_claim:
            self._next_claim = now + CLAIM_SECONDS
            self._insist(self._claim)
        due = [attempt for attempt in self._retries if attempt.due <= now]
        self._retries = [attempt for attempt in self._retries if attempt.due > now]
        block_ms = 20 if due or self._retries else BLOCK_MS
        return due + [Attempt(entry) for entry in self._insist(lambda: self._read(block_ms))]

    def _claim(self) -> None:
        if self._streams.claim_from_the_dead("rollouts", self.id, alive_ids(self._streams)):
            self._reader.sweep_now()

    def _read(self, block_ms: int) -> list[Entry]:
        try:
            return self._reader.read(BATCH, block_ms)
        except QueueLost as loss:
            log.warning("%s; it has been created anew", loss)
            return []

    def _process(self, attempt: Attempt) -> None:
        try:
            group = decode_group(attempt.entry.payload)
        except MalformedEntry as error:
            return self._bury(attempt, str(error))
        results = self._score(group)
        failures = [(number, result) for number, result in enumerate(results) if result.status != "ok"]
        if not failures:
            return self._forward(attempt.entry, group, results)
        number, result = failures[0]
        cause = f"{len(failures)} of {len(results)} completions not scored; {number}: {result.error}"
        if result.status == "invalid" or attempt.number >= self._max_attempts:
            return self._bury(attempt, cause)  # an invalid item would be invalid again
        attempt.due = time.monotonic() + self._retry_seconds * 2 ** (attempt.number - 1)
        attempt.number += 1
        self._retries.append(attempt)

    def _score(self, group: Group) -> list[ScoreResult]:
        prompt = group.prompt
        return self._core.score([
            ScoreItem(
                prompt=prompt.text,
                response=completion.text,
                ground_truth=prompt.ground_truth,
                metadata=prompt.metadata,
            )
            for completion in group.completions
        ])  # fmt: skip

    def _forward(self, entry: Entry, group: Group, results: list[ScoreResult]) -> None:
        for completion, result in zip(group.completions, results, strict=True):
            completion.reward, completion.components = result.reward, result.components
        fields, payload = group.fields(), encode(group)
        self._counts["groups_scored"] += self._insist(
            lambda: self._streams.forward(entry, "rollouts", "experiences", fields, payload)
        )
        self._reader.done(entry)

    def _bury(self, attempt: Attempt, cause: str) -> None:
        entry, number = attempt.entry, attempt.number
        self._counts["groups_buried"] += self._insist(
            lambda: self._streams.dead_letter(entry, "rollouts", "reward", cause, number)
        )
        self._reader.done(entry)
        log.warning("dead letter %s after %d attempts: %s", entry.id, number, cause)

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

    def _leave(self) -> None:
        try:
            self._heartbeat.stop()
        except redis.RedisError as error:
            log.warning("could not sign off, the heartbeat will expire: %s", error)
