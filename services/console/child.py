"""One service as a child process: its log file, and what it printed since somebody last looked."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from services.console.process_tree import MARK


class Child:
    """A process that writes to its log file, in a session of its own: Ctrl-C reaches the launcher alone."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, mark: str, environment: Mapping[str, str]
    ) -> None:
        self.name = name
        self.log = log
        self.mark = f"{mark}/{name}"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._read_up_to = output.tell()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment, MARK: self.mark, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
        self._started_at = self._read_up_to

    @property
    def group(self) -> int:
        """Process group, the same number as the process."""
        return self._process.pid

    def exit_status(self) -> int | None:
        """None while it runs; otherwise its exit code, and 128 + the signal's number if a signal ended it."""
        code = self._process.poll()
        return 128 - code if code is not None and code < 0 else code

    def reap(self) -> None:
        """Wait for a process that was killed."""
        self._process.wait()

    def new_lines(self) -> list[str]:
        """Whole lines written to the log since the last call."""
        with self.log.open("rb") as written:
            written.seek(self._read_up_to)
            block = written.read()
        whole = block[: block.rfind(b"\n") + 1]
        self._read_up_to += len(whole)
        return whole.decode(errors="replace").splitlines()

    def last_lines(self, count: int) -> list[str]:
        """The end of what this process, not an earlier one, wrote to the log."""
        with self.log.open("rb") as written:
            written.seek(self._started_at)
            return written.read().decode(errors="replace").splitlines()[-count:]
