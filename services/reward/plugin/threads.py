"""Threads for functions that cannot be ended: one that hangs keeps its thread, but not its caller."""

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

from services.reward.protocol import NEVER, OVERDUE, Failure, Outcome, Unscorable

_LOOK_SECONDS = 0.5


class Task:
    """A call on its way through the queue."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.result: Future[Any] = Future()
        self.began: float | None = None


class Threads:
    """Daemon threads, so that one that hangs does not keep the process from ending."""

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._queue: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._given_up: set[Future[Any]] = set()
        self._changing = threading.Lock()
        for _ in range(count):
            threading.Thread(target=self._work, name=name, daemon=True).start()

    def submit(self, function: Callable[[], Any]) -> Task:
        task = Task(function)
        self._queue.put(task)
        return task

    def outcome(self, task: Task, deadline_seconds: float, until: float = NEVER) -> Outcome:
        """What the call gave; a failure once it ran for longer than its deadline, or no thread is left."""
        patience = min(deadline_seconds, _LOOK_SECONDS)
        while not wait([task.result], patience).done:
            if task.began is not None and time.monotonic() - task.began >= deadline_seconds:
                with self._changing:
                    self._given_up.add(task.result)
                return Failure("timeout", f"took longer than {deadline_seconds:g} s")
            if time.monotonic() >= until:
                if not task.result.cancel():
                    with self._changing:
                        self._given_up.add(task.result)
                return OVERDUE
            if task.began is None and self._hanging() == self._count and task.result.cancel():
                return Failure("timeout", f"found all {self._count} threads hanging in earlier items")
        try:
            return task.result.result()
        except Unscorable as error:
            return Failure("invalid", str(error))
        except (Exception, SystemExit) as error:  # whatever it raised becomes this item's status
            return Failure("error", f"raised {type(error).__name__}: {error}")

    def close(self) -> None:
        for _ in range(self._count):
            self._queue.put(None)

    def _hanging(self) -> int:
        with self._changing:
            self._given_up = {result for result in self._given_up if not result.done()}
            return len(self._given_up)

    def _work(self) -> None:
        while task := self._queue.get():
            if not task.result.set_running_or_notify_cancel():
                continue
            task.began = time.monotonic()
            try:
                task.result.set_result(task.function())
            except (Exception, SystemExit) as error:  # told to the caller
                task.result.set_exception(error)
