"""Programs written by a model, run where they can do no harm: the service's end of `sandbox_child.py`."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal, NamedTuple

from services.reward.sandbox_child import CANNOT_ISOLATE

LAUNCHER = Path(__file__).with_name("sandbox_child.py")
PYTHON = {
    "python": os.path.realpath(Path(sys.base_prefix) / "bin" / "python3"),
    "python_home": os.path.realpath(sys.base_prefix),
}
"""The programs' Python: that of the service, without its packages."""
STARTING_SECONDS = 1.0
"""What the launcher itself may take, apart from the program's own time."""


class Limits(NamedTuple):
    """Of one run of a program."""

    seconds: float
    memory_mb: int
    """Address space of each of its processes."""
    disk_mb: int = 16
    """What it may write in all, and to its standard output."""


class Ending(NamedTuple):
    """How a program ended."""

    status: Literal["ok", "failed", "timeout"]
    """`ok`: exit status 0 in time."""
    output: str
    errors: str
    """The end of its standard error."""


class CannotIsolate(OSError):
    """The system does not permit what the sandbox needs; the message says which call."""


def run_python(program: str, stdin: str, limits: Limits, isolated: bool = True) -> Ending:
    """Run a Python program by itself.

    Isolated, it sees a file system of its own (the system's libraries, Python without further packages, an
    empty folder to write in), no network, no other process and no variable of ours. Otherwise it has only the
    limits, a clean environment and a folder of its own: it can read and send away what this service can.

    Raises:
    CannotIsolate: the system permits no isolation.
    """
    with tempfile.TemporaryDirectory(prefix="rollstream-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "root").mkdir()
        (folder / "program").write_bytes(program.encode(errors="replace"))
        (folder / "stdin").write_bytes(stdin.encode(errors="replace"))
        code = _run(folder, {"isolated": isolated, "folder": name, **PYTHON, **limits._asdict()})
        told = _read(folder / "stderr", 2000, from_end=True)
        if code == CANNOT_ISOLATE:
            raise CannotIsolate(told.strip())
        status: Literal["ok", "failed", "timeout"] = "ok" if code == 0 else "failed"
        if code in (None, -signal.SIGXCPU, 128 + signal.SIGXCPU):
            status = "timeout"
        return Ending(status, _read(folder / "stdout", limits.disk_mb * 2**20), told)


def _run(folder: Path, order: dict[str, Any]) -> int | None:
    """The launcher's exit code; None if it had to be killed."""
    with (
        (folder / "stdin").open("rb") as stdin,
        (folder / "stdout").open("wb") as stdout,
        (folder / "stderr").open("wb") as stderr,
        subprocess.Popen(
            [sys.executable, "-I", "-S", str(LAUNCHER), json.dumps(order)],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
            start_new_session=True,
        ) as process,
    ):
        try:
            return process.wait(order["seconds"] + STARTING_SECONDS)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):  # nothing of its session is left
                os.killpg(process.pid, signal.SIGKILL)  # isolated, all it started dies with the first


def check_isolation() -> None:
    """Raises:
    ValueError: this system does not let us isolate programs, with what to do.
    """
    try:
        ending = run_python("print(6 * 7)", "", Limits(seconds=10, memory_mb=512))
    except CannotIsolate as error:
        raise ValueError(
            f"programs cannot be isolated on this system ({error}). Permit user namespaces (in a container: "
            "a seccomp profile that allows unshare, mount and pivot_root), score code through a sandbox "
            'service, or, only for programs that you trust, set isolation = "none"'
        ) from error
    if ending.output != "42\n":
        raise ValueError(f"Python does not run in the sandbox on this system: {ending.errors.strip()[-500:]}")


def _read(file: Path, most: int, from_end: bool = False) -> str:
    with file.open("rb") as opened:
        size = opened.seek(0, os.SEEK_END)
        opened.seek(max(0, size - most) if from_end else 0)
        return opened.read(most).decode(errors="replace")
