"""The service's end of the pool's processes: starting, asking and killing them."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from services.reward.frames import Answer, Closed, End, Fork, Prepare, Work, has_message, receive, send
from services.reward.protocol import Failure, Outcome, Steps
from shared.scoring import ScoreItem

PREPARE_SECONDS = 60.0
"""How long importing and preparing a function may take in a process, apart from any item's deadline."""
STOP_SECONDS = 2.0
LOW_PRIORITY = 19
"""Of a slow item's process. Several that spin must not together outweigh those that work."""
INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
"""Environment variables that the processes see. Tokens are not among them."""


class Nursery:
    """The process that the workers are forked from. Thread-safe; it starts with the first worker."""

    def __init__(self, memory_mb: int) -> None:
        self._memory_mb = memory_mb
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._closed = False

    def fork(self, modules: Sequence[str]) -> tuple[int, socket.socket]:
        """A new process and the channel to it.

        Raises:
        Closed: it cannot be had; another try may succeed.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                pid = self._ask(Fork(list(modules)), [theirs.fileno()])
        except BaseException:
            ours.close()
            raise
        return pid, ours

    def end(self, pid: int, wait: bool) -> int:
        """Kill a process; its exit code if it is waited for, minus the signal's number if a signal ended it.

        Raises:
        Closed: the nursery is gone, and all its processes with it.
        """
        return self._ask(End(pid, wait), [])

    def close(self) -> None:
        """End the nursery and all its processes, for good."""
        with self._lock:
            self._closed = True
            self._stop()

    def _ask(self, request: Fork | End, descriptors: list[int]) -> int:
        with self._lock:
            if self._control is None:
                if self._closed or isinstance(request, End):
                    raise Closed("the process that starts the others is gone")
                self._start()
            assert self._control
            try:
                socket.send_fds(self._control, [b"+"], descriptors)
                until = time.monotonic() + PREPARE_SECONDS
                send(self._control, request, until)
                return receive(self._control, int, until)
            except (Closed, OSError) as error:
                self._stop()
                raise Closed(f"the process that starts the others is gone: {error}") from error

    def _start(self) -> None:
        root = str(Path(__file__).parents[2])
        environment = {name: os.environ[name] for name in INHERITED if name in os.environ}
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment |= {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "services.reward.pool_child",
                    str(theirs.fileno()),
                    str(self._memory_mb),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno() if sys.stderr else subprocess.DEVNULL,
                env=environment,
            )

    def _stop(self) -> None:
        if self._control:
            self._control.close()
        if self._process:
            try:
                self._process.wait(STOP_SECONDS)  # it ends the others first
            except subprocess.TimeoutExpired:
                self._process.kill()  # and they die with it
                self._process.wait()
        self._control = self._process = None


class WorkerProcess:
    """One process with a function table of its own. For one thread at a time."""

    def __init__(self, nursery: Nursery, modules: Sequence[str]) -> None:
        """Raises:
        Closed: it could not be started.
        """
        self._nursery = nursery
        self._prepared: dict[int, Failure | None] = {}
        self.pid, self._channel = nursery.fork(modules)

    def prepare(self, key: int, factory: str, parameters: Mapping[str, Any]) -> Failure | None:
        """Make function `key` ready, once; the failure if it cannot be.

        Raises:
        Closed, TimeoutError: the process must be ended.
        """
        if key not in self._prepared:
            answer = self._exchange(Prepare(key, factory, dict(parameters)), PREPARE_SECONDS)
            failed = answer.status != "ok"
            self._prepared[key] = (
                Failure("error", f"could not be prepared: {answer.cause}") if failed else None
            )
        return self._prepared[key]

    def begin(self, key: int, item: ScoreItem, until: float) -> None:
        """Raises:
        Closed, TimeoutError: the process must be ended.
        ValueError: the item cannot be sent.
        """
        work = Work(key, item.prompt, item.response, item.ground_truth, item.metadata)
        send(self._channel, work, until)

    def has_answered(self, until: float) -> bool:
        return has_message(self._channel, until)

    def outcome(self, until: float) -> Outcome:
        """Raises:
        Closed, TimeoutError: the process must be ended.
        """
        answer = receive(self._channel, Answer, until)
        if answer.status != "ok":
            return Failure(answer.status, answer.cause)
        return answer.value if answer.steps is None else Steps(answer.value, tuple(answer.steps))

    def yield_processor(self) -> None:
        """Let others go first, from now on."""
        with contextlib.suppress(ProcessLookupError):  # it may just have died
            os.setpriority(os.PRIO_PROCESS, self.pid, LOW_PRIORITY)

    def kill(self) -> None:
        """End it, whatever it does. It may take a while to be gone."""
        self._channel.close()
        with contextlib.suppress(Closed):  # then all have ended
            self._nursery.end(self.pid, wait=False)

    def ending(self) -> str:
        """How it ended, after `Closed`."""
        self._channel.close()
        try:
            code = self._nursery.end(self.pid, wait=True)
        except Closed:
            return "its process ended with the one that started it"
        how = f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"
        return f"its process {how}"

    def _exchange(self, request: Prepare, seconds: float) -> Answer:
        until = time.monotonic() + seconds
        send(self._channel, request, until)
        return receive(self._channel, Answer, until)
