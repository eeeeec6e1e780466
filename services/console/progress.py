"""What is known of a running run: its steps, evaluations, workers, queues and rates, read from Redis."""

import json
import time
from collections import deque
from typing import Any

from services.console.queues import Queue, read_queues
from shared.stream import Entry, Streams
from shared.workers import list_workers

RATE_WINDOW = 10.0
"""Seconds over which the generation rate is taken; workers report every two."""
MEASURED = ("step", "eval")
"""Kinds of events whose text is a JSON object of metrics."""


class Progress:
    """Follows one run, from now on or with what its events still tell of the past."""

    def __init__(self, streams: Streams, with_past: bool) -> None:
        self.steps: dict[int, dict[str, float]] = {}
        self.evaluations: dict[int, dict[str, float]] = {}
        self.workers: list[dict[str, Any]] = []
        self.queues: list[Queue] = []
        self._streams = streams
        newest = [] if with_past else streams.tail("events", 1)
        self._cursor = newest[0].entry_id if newest else "0"
        self._generated: deque[tuple[float, dict[str, int]]] = deque()

    def refresh(self) -> list[Entry]:
        """Read what is new and return the events among it.

        Raises:
        redis.RedisError: Redis does not answer.
        """
        events = self._streams.after("events", self._cursor)
        for event in events:
            self._cursor = event.entry_id
            if event.fields["kind"] in MEASURED:
                rows = self.steps if event.fields["kind"] == "step" else self.evaluations
                _note(rows, json.loads(event.fields["text"]))
        self.workers = list_workers(self._streams)
        self.queues = read_queues(self._streams)
        self._sample_generation()
        return events

    @property
    def newest_step(self) -> dict[str, float]:
        """Metrics of the last finished step; empty before the first."""
        return self.steps[max(self.steps)] if self.steps else {}

    @property
    def newest_evaluation(self) -> dict[str, float]:
        return self.evaluations[max(self.evaluations)] if self.evaluations else {}

    @property
    def generated_per_second(self) -> float:
        """Tokens generated per second by all rollout servers, over the last seconds."""
        if len(self._generated) < 2:
            return 0.0
        (since, first), (until, last) = self._generated[0], self._generated[-1]
        return sum(max(count - first.get(id, 0), 0) for id, count in last.items()) / (until - since)

    @property
    def trained_per_second(self) -> float:
        """Tokens trained on per second while the learner was optimizing, in the last step."""
        step = self.newest_step
        return step["tokens/trained"] / step["time/optimize"] if step else 0.0

    def _sample_generation(self) -> None:
        now = time.monotonic()
        counts = {
            worker["id"]: worker["tokens_generated"]
            for worker in self.workers
            if "tokens_generated" in worker
        }
        self._generated.append((now, counts))
        while now - self._generated[0][0] > RATE_WINDOW:
            self._generated.popleft()


def _note(rows: dict[int, dict[str, float]], metrics: dict[str, float]) -> None:
    """Add a row; those of the same and later steps are from before a restart and no longer true."""
    step = int(metrics["step"])
    for undone in [other for other in rows if other >= step]:
        del rows[undone]
    rows[step] = metrics
