"""Ends whole families of processes: a service, its group, and helpers it started in sessions of their own.

torchrun and vLLM put workers into new sessions, where neither Ctrl-C nor a signal to the service's group
reaches them. All of a service's processes inherit an environment variable that marks them, so they are found
by it even after their parents are gone. Standard library only: the guard runs this without anything else.
"""

import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

MARK = "ROLLSTREAM_LAUNCHED_BY"


def kill_family(groups: Iterable[int], mark: str) -> None:
    """Kill every process of the groups, and every process whose mark begins with `mark`."""
    for group in groups:
        _send(os.killpg, group, signal.SIGKILL)
    for pid in marked_processes(mark):
        _send(os.kill, pid, signal.SIGKILL)


def ask_to_finish(pid: int) -> None:
    """Send SIGTERM to a service, and only to it: it ends its own helpers in its own order."""
    _send(os.kill, pid, signal.SIGTERM)


def is_running(pid: int) -> bool:
    return _send(os.kill, pid, 0)


def marked_processes(mark: str) -> list[int]:
    """Ids of this user's other processes whose mark begins with `mark`. Empty where there is no /proc."""
    wanted = f"\0{MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in b"\0" + (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue  # it has ended, or belongs to somebody else
    return [pid for pid in found if pid != os.getpid()]


def _send(how: Any, target: int, signum: int) -> bool:
    try:
        how(target, signum)
    except ProcessLookupError:
        return False
    return True
