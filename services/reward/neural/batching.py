"""Batches across requests: one thread per model takes rows of like length from those that wait."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field

from services.reward.neural.cutting import next_batch


@dataclass(eq=False)
class Row:
    """One text to score."""

    ids: list[int]
    reads: list[int]
    """Positions whose states the head scores; none where it looks at the text as a whole."""
    head: str
    """The head and adapter to use; rows of one batch share it."""
    text_ends: list[int] = field(default_factory=list)
    """Of what is scored in a response, where in its text; only for whoever made the row."""
    scores: "Future[tuple[float, ...]]" = field(default_factory=Future)
    since: float = field(default_factory=time.monotonic)
    """When it was submitted, in monotonic seconds."""


Run = Callable[[Sequence[Row]], list[tuple[float, ...]]]


class Closed(Exception):
    """The batcher was closed before the row's turn."""


class Batcher:
    """Runs rows of many callers in common batches. Thread-safe."""

    def __init__(self, run: Run, max_batch_tokens: int, max_wait_seconds: float) -> None:
        """`run` gives the scores of rows with the same head, in their order; only one thread calls it."""
        self._run = run
        self._max_batch_tokens = max_batch_tokens
        self.batch_cost = 64.0
        """Tokens that take as long as one batch more; whoever knows the model says it better."""
        self._max_wait_seconds = max_wait_seconds
        self._waiting: list[Row] = []
        self._tokens_waiting = 0
        self._changed = threading.Condition()
        self._closed = False
        self.batch_began: float | None = None
        """When the batch at hand began, in monotonic seconds; None between batches."""
        self._thread = threading.Thread(target=self._work, name="reward-model", daemon=True)
        self._thread.start()

    def submit(self, rows: Sequence[Row]) -> None:
        """Queue `rows`; their `scores` come when their batch is done. A cancelled row is not run."""
        with self._changed:
            if self._closed:
                raise Closed("the scorer is closed")
            self._waiting.extend(rows)
            self._tokens_waiting += sum(len(row.ids) for row in rows)
            self._changed.notify()

    def close(self) -> None:
        """Finish the batch at hand; rows still waiting fail as `Closed`."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while rows := self._rows_waiting():
            batch = next_batch(rows, self._max_batch_tokens, self.batch_cost)
            self._take(batch)
            self._score(batch)
        _fail(self._waiting, Closed("the scorer was closed"))

    def _rows_waiting(self) -> list[Row]:
        """Those that wait, once they fill a batch or the oldest has waited long enough; none at the end."""
        with self._changed:
            while not self._closed:
                if not self._waiting:
                    self._changed.wait()
                    continue
                left = self._waiting[0].since + self._max_wait_seconds - time.monotonic()
                if left <= 0 or self._tokens_waiting >= self._max_batch_tokens:
                    return list(self._waiting)
                self._changed.wait(left)
            return []

    def _take(self, rows: Sequence[Row]) -> None:
        taken = set(rows)
        with self._changed:
            self._waiting = [row for row in self._waiting if row not in taken]
            self._tokens_waiting -= sum(len(row.ids) for row in rows)

    def _score(self, rows: Sequence[Row]) -> None:
        rows = [row for row in rows if not row.scores.cancelled()]
        if not rows:
            return
        self.batch_began = time.monotonic()
        try:
            scores = self._run(rows)
        except Exception as error:  # told to each row's caller; a batch too big for memory passes in halves
            if len(rows) == 1:
                return _fail(rows, error)
            middle = len(rows) // 2
            self._score(rows[:middle])
            return self._score(rows[middle:])
        finally:
            self.batch_began = None
        for row, its_scores in zip(rows, scores, strict=True):
            if row.scores.set_running_or_notify_cancel():
                row.scores.set_result(its_scores)


def _fail(rows: Sequence[Row], error: Exception) -> None:
    for row in rows:
        try:
            row.scores.set_exception(error)
        except InvalidStateError:
            assert row.scores.cancelled()
