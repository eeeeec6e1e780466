"""What is known of a running run: its steps, evaluations, workers, queues and rates, read from Redis."""

import json
from collections.abc import Iterator
from typing import Any

from services.console.queues import Queue, read_queues
from shared.entry import Entry
from shared.stream import Streams
from shared.workers import list_workers

MEASURED = ("step", "eval")
"""Kinds of events whose text is a JSON object of metrics."""


class Progress:
    """Follows one run, from now on or with what its events still tell of the past."""

    def __init__(self, streams: Streams, with_past: bool) -> None:
        self.run = streams.run
        self.steps: dict[int, dict[str, float]] = {}
        self.evaluations: dict[int, dict[str, float]] = {}
        self.workers: list[dict[str, Any]] = []
        self.queues: list[Queue] = []
        self._streams = streams
        newest = [] if with_past else streams.tail("events", 1)
        self._cursor = newest[0].entry_id if newest else "0"

    def refresh(self) -> None:
        """Read what is new.

        Raises:
        redis.RedisError: Redis does not answer.
        """
        for event in self._new_events():
            if event.fields["kind"] in MEASURED:
                rows = self.steps if event.fields["kind"] == "step" else self.evaluations
                _note(rows, json.loads(event.fields["text"]))
        self.workers = list_workers(self._streams)
        self.queues = read_queues(self._streams)

    @property
    def newest_step(self) -> dict[str, float]:
        """Metrics of the last finished step; empty before the first."""
        return self.steps[max(self.steps)] if self.steps else {}

    @property
    def newest_evaluation(self) -> dict[str, float]:
        return self.evaluations[max(self.evaluations)] if self.evaluations else {}

    def _new_events(self) -> Iterator[Entry]:
        while page := self._streams.after("events", self._cursor):
            self._cursor = page[-1].entry_id
            yield from page


def _note(rows: dict[int, dict[str, float]], metrics: dict[str, float]) -> None:
    """Add a row; those of the same and later steps are from before a restart and no longer true."""
    step = int(metrics["step"])
    for undone in [other for other in rows if other >= step]:
        del rows[undone]
    rows[step] = metrics
