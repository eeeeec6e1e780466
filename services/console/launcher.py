"""Starts child processes, waits with them, and sees to it that none of them outlives it, however it ends."""

import contextlib
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType

from services.console import guard
from services.console.child import Child
from services.console.process_tree import ask_to_finish, kill_family

GUARD_PATIENCE = 15.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """A signal asked the launcher to stop."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.exit_status = 128 + signum


class Launcher:
    """A context: on leaving it, every child still running is stopped, the last started first.

    A signal raises `Interrupted` in the next `wait`; a second one kills instead of waiting.
    """

    def __init__(self, stop_timeout: float) -> None:
        self._stop_timeout = stop_timeout
        self._mark = uuid.uuid4().hex
        self._children: list[Child] = []
        self._signals: list[int] = []

    def __enter__(self) -> "Launcher":
        self._old_handlers = {signum: signal.signal(signum, self._on_signal) for signum in SIGNALS}
        command = [sys.executable, guard.__file__, self._mark, str(GUARD_PATIENCE)]
        self._guard = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for child in reversed(self._children[:]):
                self.stop(child)
        finally:
            self._guard.communicate()
            for signum, handler in self._old_handlers.items():
                signal.signal(signum, handler)

    def start(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> Child:
        child = Child(name, command, log, self._mark, environment or {})
        self._children.append(child)
        self._tell_guard(f"+{child.group}")
        return child

    def wait(self, finished: Callable[[], bool], seconds: float) -> bool:
        """Call `finished` until it is true or the seconds have passed; says which.

        Raises:
        Interrupted: a signal came.
        """
        deadline = time.monotonic() + seconds
        while True:
            if self._signals:
                raise Interrupted(self._signals[0])
            if finished():
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.05)

    def stop(self, child: Child) -> None:
        """Ask the child to finish; kill it, and whatever it left behind, when it is over or out of time."""
        if child.exit_status() is None:
            ask_to_finish(child.group)
        deadline = time.monotonic() + self._stop_timeout
        while child.exit_status() is None and time.monotonic() < deadline and len(self._signals) < 2:
            time.sleep(0.02)
        kill_family([child.group], child.mark)
        child.reap()
        self._children.remove(child)
        self._tell_guard(f"-{child.group}")

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        self._signals.append(signum)

    def _tell_guard(self, line: str) -> None:
        assert self._guard.stdin
        with contextlib.suppress(BrokenPipeError):  # the guard was killed; stopping the children is up to us
            self._guard.stdin.write(line + "\n")
            self._guard.stdin.flush()
