"""Killable processes for work that may hang or use up memory: a deadline and limits for each item."""

import itertools
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from pydantic import Field

from services.reward.frames import Closed
from services.reward.pool_process import Function, Nursery, WorkerProcess
from services.reward.pool_stock import Stock
from services.reward.protocol import NEVER, OVERDUE, Failure, Outcome
from shared.config import Table
from shared.scoring import ScoreItem

READY_PROCESSES = 2
"""Kept in stock, if that many spares are allowed."""
PATIENCE_SECONDS = 0.1
"""An item that takes longer gives way: its process runs on at low priority, and another takes its place."""


class PoolConfig(Table):
    workers: int = Field(default=4, ge=1, le=256)
    """Processes for rules that may hang. They start with the first item that needs one."""
    spare_workers: int = Field(default=8, ge=0, le=256)
    """Processes more, at most, in place of those that a slow item occupies until its deadline."""
    memory_mb: int = Field(default=2048, ge=256)
    """Address space of each process."""
    network: Literal["best_effort", "required"] = "best_effort"
    """`required`: where the system gives the processes no network of their own, their items are errors."""


class Batch:
    """The items of one call, on their way through the queue."""

    def __init__(
        self, function: Function, items: Sequence[ScoreItem], deadline_seconds: float, until: float
    ) -> None:
        self.function = function
        self.items = items
        self.deadline_seconds = deadline_seconds
        self.until = until
        self.untaken = deque(range(len(items)))
        """Positions of the items that no process has been given."""
        self._outcomes: list[Outcome | None] = [None] * len(items)
        self._missing = len(items)
        self._changed = threading.Condition()

    def set(self, position: int, outcome: Outcome) -> None:
        with self._changed:
            self._outcomes[position] = outcome
            self._missing -= 1
            if not self._missing:
                self._changed.notify()

    def wait(self) -> list[Outcome]:
        with self._changed:
            self._changed.wait_for(lambda: not self._missing)
        return [outcome for outcome in self._outcomes if outcome is not None]


class Pool:
    """Runs functions in processes that are killed at an item's deadline and replaced. Thread-safe.

    Each process has a thread here that hands it one item at a time.
    """

    def __init__(self, config: PoolConfig) -> None:
        self._config = config
        self._nursery = Nursery(config.memory_mb, config.network == "required")
        self._stock = Stock(self._nursery, min(READY_PROCESSES, config.spare_workers))
        self._queue: deque[Batch] = deque()
        """Those with untaken items. Each gives one in its turn: no caller waits behind all of another's."""
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._active = 0
        """Threads that have not been told to leave."""
        self._idle = 0
        self._slow = 0
        self._closed = False
        self._functions: dict[bytes, Function] = {}
        self._keys = itertools.count()

    def run(
        self,
        factory: str,
        parameters: Mapping[str, Any],
        items: Sequence[ScoreItem],
        deadline_seconds: float,
        modules: Sequence[str] = (),
        gives_way: bool = True,
        until: float = NEVER,
    ) -> list[Outcome]:
        """One outcome per item, in order, of the function that `factory` makes.

        factory: `module:function` of this distribution. In the process it is called once with `parameters`
            (values that msgpack can carry) and gives the function from an item to a number or `Steps`. That
            function may raise `Unscorable`; whatever else it raises is an `error`.
        deadline_seconds: of each item, from when a process has it. Then the process is killed.
        modules: what takes long to import; done once for all processes, before any item's deadline begins.
            Only modules that are trusted not to hang.
        until: as in `Scorer.score`.
        gives_way: whether a slow item goes on at low priority. Not right for what is timed itself.
        """
        if not items:
            return []
        batch = Batch(self._function(factory, parameters, modules, gives_way), items, deadline_seconds, until)
        with self._changed:
            if self._closed:
                return [Failure("error", "was asked of a service that is stopping")] * len(items)
            self._queue.append(batch)
            self._add_threads()
            self._changed.notify(len(items))
        return batch.wait()

    def close(self) -> None:
        """End all processes. Items that wait, or are being worked on, become errors."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._nursery.close()
        self._stock.close()
        for thread in self._threads:
            thread.join()
        for batch in self._queue:
            for position in batch.untaken:
                batch.set(position, Failure("error", "was waiting when the service stopped"))
        self._queue.clear()

    @property
    def has_own_network(self) -> bool | None:
        """Whether its processes are cut off from the network; None before the first one."""
        return self._nursery.has_own_network

    def _function(
        self, factory: str, parameters: Mapping[str, Any], modules: Sequence[str], gives_way: bool
    ) -> Function:
        content = msgspec.msgpack.encode([factory, parameters, modules, gives_way])
        with self._changed:
            if content not in self._functions:
                key = next(self._keys)
                self._functions[content] = Function(key, factory, parameters, modules, gives_way)
                self._stock.learn(self._functions[content])
            return self._functions[content]

    def _add_threads(self) -> None:
        """As many as there is work for, within the limits; the slow ones do not count as workers."""
        most = self._config.workers + self._config.spare_workers
        wanted = sum(len(batch.untaken) for batch in self._queue) - self._idle
        while wanted > 0 and self._active - self._slow < self._config.workers and self._active < most:
            thread = threading.Thread(target=self._serve, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system gives no more threads; those there are will do it
                if self._active:
                    return
                raise
            self._threads = [*(thread for thread in self._threads if thread.is_alive()), thread]
            self._active += 1
            wanted -= 1

    def _serve(self) -> None:
        """Of one thread: work off the queue with a process of its own."""
        process: WorkerProcess | None = None
        while task := self._next(process):
            process = self._settle(process, *task)
        if process:
            process.kill()

    def _next(self, process: WorkerProcess | None) -> tuple[Batch, int] | None:
        """The next item; None when this thread is to leave: the pool is closed, or others took its place."""
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._queue or self._closed)
            self._idle -= 1
            replaced = process is None and self._active - self._slow > self._config.workers
            if self._closed or replaced:
                self._active -= 1
                self._changed.notify()  # it may have been woken for an item
                return None
            batch = self._queue.popleft()
            position = batch.untaken.popleft()
            if batch.untaken:
                self._queue.append(batch)
            return batch, position

    def _settle(self, process: WorkerProcess | None, batch: Batch, position: int) -> WorkerProcess | None:
        """Set one item's outcome, whatever happens; the process if it can go on."""
        outcome: Outcome
        if time.monotonic() >= batch.until:
            batch.set(position, OVERDUE)
            return process
        for is_last in (False, True):
            begun = slow = False
            try:
                process = process or self._stock.take(batch.function)
                failure, until = self._begin(process, batch, position)
                begun = True
                outcome, slow = (failure, False) if failure else self._finish(process, batch.function, until)
            except TimeoutError:
                late = Failure("timeout", f"took longer than {batch.deadline_seconds:g} s")
                outcome, slow = OVERDUE if time.monotonic() >= batch.until else late, True
            except Closed as error:
                ending = process.ending() if process else None
                outcome, process = Failure("error", f"gave no answer: {ending or error}"), None
                if not is_last and (ending is None or not begun):
                    continue  # the process did not end by what this item did
            except Exception as error:  # without an outcome its caller would wait for ever
                outcome, slow = Failure("error", f"could not be run: {type(error).__name__}: {error}"), True
            break
        batch.set(position, outcome)
        if process and slow:  # where it still runs, it would keep its low priority
            process.kill()
            return None
        return process

    def _begin(self, process: WorkerProcess, batch: Batch, position: int) -> tuple[Failure | None, float]:
        """Give the process an item: why that cannot be, or None and until when it has time.

        Raises:
        Closed, TimeoutError: the process must be ended.
        """
        if failure := process.prepare(batch.function):
            return failure, 0.0
        until = min(time.monotonic() + batch.deadline_seconds, batch.until)
        try:
            process.begin(batch.function.key, batch.items[position], until)
        except ValueError as error:
            return Failure("invalid", f"cannot be given the item: {error}"), 0.0
        return None, until

    def _finish(self, process: WorkerProcess, function: Function, until: float) -> tuple[Outcome, bool]:
        """The item's outcome, and whether it took so long that another process was given its place.

        Raises:
        Closed, TimeoutError: the process must be ended.
        """
        if process.has_answered(min(until, time.monotonic() + PATIENCE_SECONDS)):
            return process.outcome(until), False
        if function.gives_way:
            process.yield_processor()
        with self._changed:
            self._slow += 1
            self._add_threads()
        try:
            return process.outcome(until), True
        finally:
            with self._changed:
                self._slow -= 1
