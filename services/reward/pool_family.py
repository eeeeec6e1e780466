"""What the nursery looks after: its workers, all that they start, and the folders that they write in."""

import contextlib
import fcntl
import os
import select
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "rollstream-pool-"
SWEEP_SECONDS = 0.05
"""How often it is looked whether the killed are gone, while some are not."""


class Family:
    """The workers and their descendants, which become children of this process when a worker ends."""

    def __init__(self) -> None:
        self.workers: dict[int, Path] = {}
        """Folder of each by process id."""
        self._dying: dict[int, Path] = {}

    def wait(self, control: socket.socket) -> None:
        """Until there is something to read; what has been killed is seen off meanwhile."""
        while not select.select([control], [], [], SWEEP_SECONDS if self._sweep() else None)[0]:
            pass

    def end(self, pid: int, wait: bool) -> int:
        """Kill a worker and its process group; its exit code, unless it is not waited for."""
        folder = self.workers.pop(pid)
        _kill(pid)
        code = _reap(pid, wait)
        if code is None:
            self._dying[pid] = folder
            return -signal.SIGKILL
        shutil.rmtree(folder, ignore_errors=True)
        self._sweep()
        return code

    def end_all(self) -> None:
        """Kill all there are, and wait until they are gone."""
        for pid in list(self.workers):
            self.end(pid, True)
        for pid in self._dying:
            _reap(pid, True)
        self._dying.clear()
        while self._sweep():
            select.select([], [], [], SWEEP_SECONDS / 5)

    def _sweep(self) -> bool:
        """Kill what workers left behind; whether something that was killed is not gone yet."""
        for pid, folder in list(self._dying.items()):
            if _reap(pid, False) is not None:
                shutil.rmtree(folder, ignore_errors=True)
                del self._dying[pid]
        strangers = [pid for pid in _children() if pid not in self.workers and pid not in self._dying]
        for pid in strangers:
            if _reap(pid, False) is None:
                _kill(pid)
        return bool(self._dying or strangers)


@contextlib.contextmanager
def own_folder() -> Iterator[Path]:
    """A folder for temporary files that is locked while it is used and removed afterwards.

    Those of processes that were killed are no longer locked, and are removed first.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        if left.stat().st_uid == os.getuid() and (descriptor := _lock(left)) is not None:
            shutil.rmtree(left, ignore_errors=True)
            os.close(descriptor)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    descriptor = _lock(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if descriptor is not None:
            os.close(descriptor)


def _lock(folder: Path) -> int | None:
    """A descriptor that holds the folder's lock; None if another does, or the folder is gone."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _children() -> list[int]:
    me = os.getpid()
    try:
        return [int(pid) for pid in Path(f"/proc/{me}/task/{me}/children").read_text().split()]
    except FileNotFoundError:  # a system without that list
        return []


def _kill(pid: int) -> None:
    for kill in (os.killpg, os.kill):  # it may not have its group yet
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def _reap(pid: int, wait: bool) -> int | None:
    """The exit code of an ended process; None if it has not ended yet."""
    ended, status = os.waitpid(pid, 0 if wait else os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None
