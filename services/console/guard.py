"""Stays behind when the launcher dies without a chance to clean up, and ends every service it had started.

The launcher holds the other end of this process's standard input and writes `+group` for each process group
it starts and `-group` for each that ended. The end of that input means that the launcher is gone.
Run as a script, with the launcher's mark and the seconds of patience as arguments.
"""

import sys
import time
from collections.abc import Iterable
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[2])

from services.console.process_tree import ask_to_finish, is_running, kill_family


def groups_left(lines: Iterable[str]) -> list[int]:
    """Process groups that were started and not ended when the input closed, in the order of their start."""
    groups: dict[int, None] = {}
    for line in lines:
        group = int(line[1:])
        if line[0] == "+":
            groups[group] = None
        else:
            groups.pop(group, None)
    return list(groups)


def end(groups: list[int], mark: str, patience: float) -> None:
    """Ask the services to finish, and kill what is left of them after `patience` seconds."""
    for group in groups:
        ask_to_finish(group)
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and any(map(is_running, groups)):
        time.sleep(0.1)
    kill_family(groups, mark)


if __name__ == "__main__":
    end(groups_left(sys.stdin), mark=sys.argv[1], patience=float(sys.argv[2]))
