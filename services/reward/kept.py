"""Scores that outlive the worker that made them: what could be scored of a group before the rest failed."""

import hashlib
from collections.abc import Sequence

import msgspec

from services.reward.attempt import Attempt
from services.reward.config import RewardConfig
from shared.entry import Entry, checksum
from shared.scoring import ScoreResult
from shared.stream import Streams

SECONDS = 3600
"""How long a score waits for a worker that scores the rest of its group; that it is gone costs only time."""


class Kept:
    """A hash in Redis per group that is not wholly scored: completion to result. Each call may be repeated.

    Its key names the group's id, the checksum of its content and the scorers' configuration, so that no score
    is taken for one of another text or by other scorers. Written before a second attempt, read with each
    entry, and deleted when the group has gone on.
    """

    def __init__(self, streams: Streams, config: RewardConfig) -> None:
        self._streams = streams
        scorers = config.model_dump_json(include={"scorers", "composition"})
        self._scorers = hashlib.sha256(scorers.encode()).hexdigest()[:16]

    def recall(self, entries: Sequence[Entry]) -> list[Attempt]:
        """A first attempt at each entry, with what is scored of it already."""
        if not entries:
            return []
        pipeline = self._streams.client.pipeline(transaction=False)
        for entry in entries:
            pipeline.hgetall(self._key(entry))
        found: list[dict[bytes, bytes]] = pipeline.execute()
        return [Attempt(entry, kept=_results(fields)) for entry, fields in zip(entries, found, strict=True)]

    def keep(self, attempt: Attempt) -> None:
        """Write `attempt.kept` down."""
        if attempt.kept:
            scores = {str(number): msgspec.msgpack.encode(result) for number, result in attempt.kept.items()}
            pipeline = self._streams.client.pipeline(transaction=False)
            pipeline.hset(self._key(attempt.entry), mapping=scores)  # type: ignore[arg-type]  # of redis-py
            pipeline.expire(self._key(attempt.entry), SECONDS)
            pipeline.execute()

    def forget(self, entries: Sequence[Entry]) -> None:
        if entries:
            self._streams.client.unlink(*map(self._key, entries))

    def _key(self, entry: Entry) -> str:
        content = entry.fields.get("checksum") or checksum(entry.payload)
        return self._streams.key(f"scores:{entry.id}:{content}:{self._scorers}")


def _results(fields: dict[bytes, bytes]) -> dict[int, ScoreResult]:
    results = {}
    for number, content in fields.items():
        try:
            results[int(number)] = msgspec.msgpack.decode(content, type=ScoreResult)
        except (ValueError, msgspec.DecodeError):
            continue  # written by somebody else: it is scored again
    return results
