"""The service's end of the pool's processes: starting, asking and killing them."""

import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from services.reward.frames import (
    Answer,
    Closed,
    End,
    Fork,
    Prepare,
    Work,
    has_message,
    is_open,
    receive,
    send,
)
from services.reward.protocol import Failure, Outcome, Steps
from shared.scoring import ScoreItem

log = logging.getLogger("rollstream")

PREPARE_SECONDS = 60.0
"""How long importing and preparing a function may take in a process, apart from any item's deadline."""
STOP_SECONDS = 2.0
LOW_PRIORITY = 19
"""Of a slow item's process. Several that spin must not together outweigh those that work."""
INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
"""Environment variables that the processes see. Tokens are not among them."""


class Function(NamedTuple):
    """What a process has to prepare once."""

    key: int
    factory: str
    parameters: Mapping[str, Any]
    modules: Sequence[str]
    gives_way: bool
    """Whether a slow item's process runs on at low priority."""


class Nursery:
    """The process that the workers are forked from. Thread-safe; it starts with the first worker."""

    def __init__(self, memory_mb: int, network_required: bool = False) -> None:
        self._memory_mb = memory_mb
        self._network_required = network_required
        self.has_own_network: bool | None = None
        """Whether the processes are cut off from the network; None before the first one."""
        self._generation = 0
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._closed = False

    def fork(self, modules: Sequence[str]) -> tuple[int, int, socket.socket]:
        """A new process: its id, the nursery's generation, and the channel to it.

        Raises:
        Closed: it cannot be had; another try may succeed.
        """
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise Closed(f"no process can be started: {error}") from error
        try:
            with theirs, self._lock:
                pid = self._ask(Fork(list(modules)), [theirs.fileno()])
                generation = self._generation
            if pid < 0:
                raise Closed(f"no process can be started: {os.strerror(-pid)}")
        except BaseException:
            ours.close()
            raise
        return pid, generation, ours

    def end(self, pid: int, generation: int, wait: bool) -> int:
        """Kill a process; its exit code if it is waited for, minus the signal's number if a signal ended it.

        generation: that of the nursery it came from; another one does not know it.

        Raises:
        Closed: that nursery is gone, and all its processes with it.
        """
        with self._lock:
            if generation != self._generation:
                raise Closed("the process that started it is gone")
            return self._ask(End(pid, wait), [])

    def close(self) -> None:
        """End the nursery and all its processes, for good."""
        with self._lock:
            self._closed = True
            self._stop()

    def _ask(self, request: Fork | End, descriptors: list[int]) -> int:
        if self._control is None and (self._closed or isinstance(request, End)):
            raise Closed("the process that starts the others is gone")
        try:
            control = self._control or self._start()
            socket.send_fds(control, [b"+"], descriptors)
            until = time.monotonic() + PREPARE_SECONDS
            send(control, request, until)
            return receive(control, int, until)
        except (Closed, OSError) as error:
            self._stop()
            raise Closed(f"the process that starts the others is gone: {error}") from error
        except BaseException:
            self._stop()  # half started or half asked, it is of no use to the next one
            raise

    def _start(self) -> socket.socket:
        root = str(Path(__file__).parents[2])
        environment = {name: os.environ[name] for name in INHERITED if name in os.environ}
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment |= {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
        self._generation += 1
        self._control, theirs = socket.socketpair()
        with theirs:
            arguments = [str(theirs.fileno()), str(self._memory_mb)]
            command = [sys.executable, "-m", "services.reward.pool_child", *arguments]
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno() if sys.stderr else subprocess.DEVNULL,
                env=environment,
            )
        isolated = bool(receive(self._control, int, time.monotonic() + PREPARE_SECONDS))
        if not isolated and self.has_own_network is None:
            log.warning("this system gives the pool's processes no network of their own; they can reach the "
                        "service's, unless the container forbids it")  # fmt: skip
        self.has_own_network = isolated
        if self._network_required and not isolated:
            raise Closed('the system permits no network isolation, and [reward.pool] network is "required"')
        return self._control

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
        self.pid, self._generation, self._channel = nursery.fork(modules)

    def prepare(self, function: Function) -> Failure | None:
        """Make the function ready, once; the failure if it cannot be.

        Raises:
        Closed, TimeoutError: the process must be ended.
        """
        key = function.key
        if key not in self._prepared:
            wanted = Prepare(key, function.factory, dict(function.parameters))
            answer = self._exchange(wanted, PREPARE_SECONDS)
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
        send(self._channel, Work(key, item), until)

    def is_alive(self) -> bool:
        """Whether it waits for something to do; for one that has nothing."""
        return is_open(self._channel)

    def has_answered(self, until: float) -> bool:
        return has_message(self._channel, until)

    def outcome(self, until: float) -> Outcome:
        """Raises:
        Closed, TimeoutError: the process must be ended.
        """
        answer = receive(self._channel, Answer, until)
        if answer.status != "ok":
            return Failure(answer.status, answer.cause)
        if answer.steps is None:
            return answer.value
        return Steps(answer.value, tuple(answer.steps), tuple(answer.ends))

    def yield_processor(self) -> None:
        """Let others go first, from now on."""
        with contextlib.suppress(ProcessLookupError):  # it may just have died
            os.setpriority(os.PRIO_PROCESS, self.pid, LOW_PRIORITY)

    def kill(self) -> None:
        """End it, whatever it does. It may take a while to be gone."""
        self._channel.close()
        with contextlib.suppress(Closed):  # then all have ended
            self._nursery.end(self.pid, self._generation, wait=False)

    def ending(self) -> str | None:
        """How it ended, after `Closed`; None if it ended with the process that started it."""
        self._channel.close()
        try:
            code = self._nursery.end(self.pid, self._generation, wait=True)
        except Closed:
            return None
        how = f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"
        return f"its process {how}"

    def _exchange(self, request: Prepare, seconds: float) -> Answer:
        until = time.monotonic() + seconds
        send(self._channel, request, until)
        return receive(self._channel, Answer, until)
