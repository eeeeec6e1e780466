"""A service process that can be struck and is reaped whatever happens."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Process:
    """A child in a session of its own, with its output in a file."""

    def __init__(self, command: Sequence[str], log: Path, folder: Path, variables: Mapping[str, str]) -> None:
        self.log = log
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables}
        with log.open("a") as output:
            self._child = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=output, stderr=output, start_new_session=True
            )

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def status(self) -> int | None:
        """None while it runs; minus the signal that ended it, or its exit status."""
        return self._child.poll()

    def strike(self, how: signal.Signals) -> None:
        """A signal to it and all its children, such as the ranks of torchrun."""
        os.killpg(self.pid, how)

    def end(self) -> None:
        if self._child.poll() is None:
            self.strike(signal.SIGKILL)
        self._child.wait()
