"""Small real child processes for the launcher's tests, and how to see whether one still runs."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

# A helper in a session of its own, as torchrun and vLLM start them. It ignores SIGTERM.
HELPER = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(600)
"""

WITH_HELPER = f"""
import subprocess, sys, time
helper = subprocess.Popen([sys.executable, "-c", {HELPER!r}], start_new_session=True, stdout=subprocess.PIPE)
helper.stdout.readline()
open(sys.argv[1], "w").write(str(helper.pid) + "\\n")
time.sleep(float(sys.argv[2]))
"""

STUBBORN = HELPER

# Writes its name to a file when it is asked to finish.
TELLS_ITS_END = """
import signal, sys, time
def leave(*_):
    with open(sys.argv[1], "a") as record:
        record.write(sys.argv[2] + "\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("up", flush=True)
time.sleep(600)
"""


def python(code: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", code, *map(str, arguments)]


def runs(pid: int) -> bool:
    """Whether the process is there and not a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until(condition: Callable[[], object], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.02)


def pid_in(path: Path) -> int:
    """The process id that a child writes to a file, with a line end when it is whole."""
    wait_until(lambda: path.exists() and path.read_text().endswith("\n"))
    return int(path.read_text())
