"""A service process that can be struck and is reaped whatever happens."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from services.console.process_tree import MARK, marked_processes

ROOT = Path(__file__).parents[2]

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["services.learner.train", "tests.chaos.service"])


class Process(Protocol):
    """Either kind below."""

    pid: int

    @property
    def status(self) -> int | None:
        """None while it runs; minus the signal that ended it, or its exit status."""

    def strike(self, how: signal.Signals) -> None:
        """A signal to it and all its children, such as the ranks of torchrun."""

    def end(self) -> None: ...


class Command:
    """A command with all the processes that it starts, in whatever sessions, and its output in a file."""

    def __init__(self, command: Sequence[str], log: Path, folder: Path, variables: Mapping[str, str]) -> None:
        self._mark = f"chaos-{uuid.uuid4().hex}"
        own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", MARK: self._mark}
        with log.open("a") as output:
            self._child = subprocess.Popen(
                [sys.executable, *command],
                cwd=folder,
                env={**os.environ, **own, **variables},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.pid = self._child.pid

    @property
    def status(self) -> int | None:
        return self._child.poll()

    def strike(self, how: signal.Signals) -> None:
        for pid in marked_processes(self._mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)

    def end(self) -> None:
        self.strike(signal.SIGKILL)
        self._child.wait()

    def rank(self, number: int) -> int:
        """The process of one of torchrun's ranks."""
        wanted = f"\0RANK={number}\0".encode()
        (pid,) = [
            pid for pid in marked_processes(self._mark) if wanted in Path(f"/proc/{pid}/environ").read_bytes()
        ]
        return pid


class Fork:
    """A service in a process forked from one that has imported torch, which saves it 5 s of starting."""

    def __init__(
        self, service: str, arguments: list[str], log: Path, folder: Path, variables: Mapping[str, str]
    ) -> None:
        self._child = _forks.Process(target=_run, args=(service, arguments, log, folder, dict(variables)))
        self._child.start()
        assert self._child.pid
        self.pid = self._child.pid

    @property
    def status(self) -> int | None:
        return self._child.exitcode

    def strike(self, how: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, how)

    def end(self) -> None:
        if self._child.exitcode is None:
            self.strike(signal.SIGKILL)
        self._child.join()


def _run(service: str, arguments: list[str], log: Path, folder: Path, variables: Mapping[str, str]) -> None:
    """In the fork: what a new process would have been given."""
    from tests.chaos.service import run

    with log.open("a") as output:
        os.dup2(output.fileno(), sys.stdout.fileno())
        os.dup2(output.fileno(), sys.stderr.fileno())
    os.chdir(folder)
    os.environ.update(variables)
    run(service, arguments)
