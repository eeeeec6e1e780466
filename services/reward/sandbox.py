"""Programs written by a model, run where they can do no harm: the service's end of `sandbox_child.py`."""

import contextlib
import json
import math
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Literal, NamedTuple

from services.reward.sandbox_child import CANNOT_ISOLATE, OUT_OF_CPU

HARNESS = Path(__file__).with_name("sandbox_harness.py").read_text()
LAUNCHER = Path(__file__).with_name("sandbox_child.py")
PYTHON = {
    "python": os.path.realpath(Path(sys.base_prefix) / "bin" / "python3"),
    "python_home": os.path.realpath(sys.base_prefix),
}
"""The programs' Python: that of the service, without its packages."""
STARTING_SECONDS = 1.0
"""What the launcher itself may take, apart from the program's own time."""


class Limits(NamedTuple):
    """Of one run of a program, which is one process."""

    cpu_seconds: float
    """Processor time, rounded up to whole seconds."""
    memory_mb: int
    """Address space."""
    wall_seconds: float = 10.0
    """Time until it is given up, whatever it did or had no chance to do."""
    disk_mb: int = 16
    """What it may write in all, and to its standard output."""


class Ending(NamedTuple):
    """How a program ended."""

    status: Literal["ok", "failed", "slow", "timeout"]
    """`ok`: exit status 0 and, if there was a test, the test passed. `slow`: its processor time was used up.
    `timeout`: it had not ended in its wall time; that says nothing of the program on a busy machine."""
    output: str
    errors: str
    """The end of its standard error."""


class CannotIsolate(OSError):
    """The system does not permit what the sandbox needs; the message says which call."""


def run_python(
    program: str, stdin: str, limits: Limits, isolated: bool = True, test: str | None = None
) -> Ending:
    """Run a Python program by itself; then, in its names, the statements of `test`.

    Isolated, it sees a file system of its own (the system's libraries, Python without further packages, an
    empty folder to write in), no network, no other process and no variable of ours. Otherwise it has only the
    limits, a clean environment and a folder of its own: it can read and send away what this service can.

    A program that ends before its test was run has not passed it, whatever its exit status: see
    `sandbox_harness.py`.

    Raises:
    CannotIsolate: the system permits no isolation.
    """
    with tempfile.TemporaryDirectory(prefix="rollstream-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "root").mkdir()
        (folder / "program").write_bytes(program.encode(errors="replace"))
        (folder / "stdin").write_bytes(stdin.encode(errors="replace"))
        order = {"isolated": isolated, "folder": name, **PYTHON, **limits._asdict()}
        order["cpu_seconds"] = math.ceil(limits.cpu_seconds)
        code, passed = _run(folder, order, test)
        told = _read(folder / "stderr", 2000, from_end=True)
        if code == CANNOT_ISOLATE:
            raise CannotIsolate(told.strip())
        status: Literal["ok", "failed", "slow", "timeout"] = "ok" if code == 0 and passed else "failed"
        if code is None:
            status = "timeout"
        elif code == OUT_OF_CPU:
            status = "slow"
        return Ending(status, _read(folder / "stdout", limits.disk_mb * 2**20), told)


def _run(folder: Path, order: dict[str, Any], test: str | None) -> tuple[int | None, bool]:
    """The launcher's exit code, None if it had to be killed; and whether the test, if any, was passed."""
    until = time.monotonic() + order["wall_seconds"] + STARTING_SECONDS
    ours, theirs = socket.socketpair()
    arguments = ["main.py"] if test is None else ["-c", HARNESS, str(theirs.fileno())]
    command = [sys.executable, "-I", "-S", str(LAUNCHER), json.dumps({**order, "arguments": arguments})]
    with ours, theirs, contextlib.ExitStack() as files:
        process = files.enter_context(
            subprocess.Popen(
                command,
                stdin=files.enter_context((folder / "stdin").open("rb")),
                stdout=files.enter_context((folder / "stdout").open("wb")),
                stderr=files.enter_context((folder / "stderr").open("wb")),
                env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
                start_new_session=True,
                pass_fds=[] if test is None else [theirs.fileno()],
            )
        )
        try:
            theirs.close()
            passed = test is None or _examine(ours, test, until)
            return process.wait(max(until - time.monotonic(), 0)), passed
        except (TimeoutError, subprocess.TimeoutExpired):
            return None, False
        finally:
            with contextlib.suppress(ProcessLookupError):  # nothing of its session is left
                os.killpg(process.pid, signal.SIGKILL)  # isolated, all it started dies with the first


def _examine(channel: socket.socket, test: str, until: float) -> bool:
    """Hand over the test once the program has run to its end, and a token once the test has: it is passed if
    the token comes back.

    Raises:
    TimeoutError: it took too long.
    """
    token = secrets.token_hex(16).encode()
    try:
        for reply in (json.dumps(test).encode() + b"\n", token):
            if _receive(channel, 1, until) != b"+":
                return False
            channel.sendall(reply)
        return _receive(channel, len(token), until) == token
    except (BrokenPipeError, ConnectionResetError):
        return False


def _receive(channel: socket.socket, count: int, until: float) -> bytes:
    channel.settimeout(max(until - time.monotonic(), 1e-4))
    return channel.recv(count, socket.MSG_WAITALL)


def check_isolation() -> None:
    """Raises:
    ValueError: this system does not let us isolate programs, with what to do.
    """
    try:
        ending = run_python("print(6 * 7)", "", Limits(cpu_seconds=10, memory_mb=512))
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
