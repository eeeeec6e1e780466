"""What an engine's steps say of its load, gathered until somebody asks."""

import threading

from services.rollout.engine import EngineLoad

_SETTLE_SECONDS = 2.0


class LoadLog:
    """One thread records, any thread asks."""

    def __init__(self, most_running: int) -> None:
        self._lock = threading.Lock()
        self._most_running = most_running
        self._running = self._waiting = 0
        self._kv_cache_use = 0.0
        self._least_waiting: int | None = None
        self._steps = self._preempted = 0
        self._settles_until = 0.0

    def settle(self, now: float) -> None:
        """Everything in flight was sent back into the engine's queue, and not for want of room: waiting and
        preemption in the next steps say nothing about load."""
        self._settles_until = now + _SETTLE_SECONDS

    def record(self, running: int, waiting: int, kv_cache_use: float, preempted: int, now: float) -> None:
        """What one step left behind."""
        with self._lock:
            if now < self._settles_until:
                waiting = preempted = 0
            self._running, self._waiting, self._kv_cache_use = running, waiting, kv_cache_use
            known = self._least_waiting
            self._least_waiting = waiting if known is None else min(known, waiting)
            self._preempted += preempted
            self._steps += 1

    def take(self) -> EngineLoad:
        """The load since this was asked last."""
        with self._lock:
            load = EngineLoad(
                steps=self._steps,
                running=self._running,
                waiting=self._waiting if self._least_waiting is None else self._least_waiting,
                kv_cache_use=self._kv_cache_use,
                preempted=self._preempted,
                most_running=self._most_running,
            )
            self._least_waiting, self._preempted, self._steps = None, 0, 0
            return load
