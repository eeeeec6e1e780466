"""Processes made before they are needed: one that is killed is replaced without any item waiting for it."""

import logging
import threading
from collections import deque

from services.reward.pool_process import Function, Nursery, WorkerProcess

log = logging.getLogger("rollstream")


class Stock:
    """Keeps processes ready in which all functions are prepared. Thread-safe.

    A fresh process takes some 15 ms until its first item is done, most of it for copying the pages that it
    shares with the nursery. Where few items hang, those 15 ms would be the slowest that sound items see.
    """

    def __init__(self, nursery: Nursery, size: int) -> None:
        self._nursery = nursery
        self._size = size
        self._ready: deque[WorkerProcess] = deque()
        self._functions: list[Function] = []
        self._wanted = 0
        """How many are to be made; one that cannot be made is not tried again until one is taken."""
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._fill, name="pool-stock", daemon=True)

    @property
    def pids(self) -> list[int]:
        """The processes that are ready."""
        with self._changed:
            return [process.pid for process in self._ready]

    def learn(self, function: Function) -> None:
        """Prepare it too, in processes that are yet to be made; the first function starts the making."""
        with self._changed:
            self._functions.append(function)
            if len(self._functions) == 1 and self._size and not self._closed:
                self._wanted = self._size
                self._thread.start()

    def take(self, function: Function) -> WorkerProcess:
        """A process that nobody else has.

        Raises:
        Closed: none is ready and none can be started.
        """
        with self._changed:
            while self._ready:
                process = self._ready.popleft()
                self._wanted += 1
                self._changed.notify()
                if process.is_alive():
                    return process
                process.kill()
        return WorkerProcess(self._nursery, function.modules)

    def close(self) -> None:
        """End what is ready. The nursery is closed already, and with it all processes."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()
        with self._changed:  # against those who still take one
            for process in self._ready:
                process.kill()

    def _fill(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted or self._closed)
                if self._closed:
                    return
                self._wanted -= 1
                functions = list(self._functions)
            if process := self._make(functions):
                with self._changed:
                    self._ready.append(process)

    def _make(self, functions: list[Function]) -> WorkerProcess | None:
        process = None
        try:
            process = WorkerProcess(
                self._nursery, [name for function in functions for name in function.modules]
            )
            for function in functions:
                process.prepare(function)
        except Exception as error:  # whoever needs a process will make one, and tell its items
            log.warning("no process could be kept ready: %s: %s", type(error).__name__, error)
            if process:
                process.kill()
            return None
        return process
