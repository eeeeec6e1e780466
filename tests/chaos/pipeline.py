"""One run of real processes that a test may strike: Redis, learner, reward service, rollout servers.

The processes that keep nothing are started again when they die, as an orchestrator would, and so is the
learner, with `--resume` once there is a checkpoint. Every death is noted: one that no strike explains fails
the audit.
"""

import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis

from services.learner import checkpoint
from shared.stream import Streams, connect
from shared.workers import list_workers
from tests.chaos.process import Process
from tests.conftest import RedisServer

RUN = "chaos"


class Pipeline:
    """A run in a folder of its own, on a Redis of its own."""

    def __init__(self, folder: Path, workspace: Path, rollouts: int = 1, **learner: Any) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self.run = folder / "runs" / RUN
        self.learner_settings = learner
        self.redis_urls: dict[str, str] = {}
        """Where a service finds Redis, if not at Redis itself."""
        self.variables: dict[str, dict[str, str]] = {}
        """Environment variables of a service."""
        self.deaths: list[tuple[str, int]] = []
        """Processes that ended, in order: their name and exit status."""
        self._workspace = workspace
        self._token = secrets.token_hex(16)
        self._processes: dict[str, Process] = {}
        self._services = ("reward", *(f"rollout{number}" for number in range(rollouts)))
        self.redis = RedisServer(folder)
        self.client = connect(self.redis.url, timeout=2.0)
        self.streams = Streams(self.client, RUN)

    def __enter__(self) -> Self:
        try:
            for name in (*self._services, "learner"):
                self.start(name)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for process in self._processes.values():
            process.end()
        self.client.close()
        self.redis.kill()

    def start(self, name: str) -> Process:
        """Start a service anew, whatever became of the process that had this name."""
        service = name.rstrip("0123456789")
        process = Process(
            [sys.executable, *self.command(service), *self._arguments(service, name)],
            self.folder / f"{name}.log",
            self._workspace,
            {"ROLLSTREAM_TOKEN": self._token} | dict(self.variables.get(name, {})),
        )
        self._processes[name] = process
        return process

    def command(self, service: str) -> list[str]:
        if service == "learner":
            return ["-m", "services.learner"]
        return ["-m", "tests.chaos.service", service]

    def _arguments(self, service: str, name: str) -> list[str]:
        url = self.redis_urls.get(name, self.redis.url)
        given = ["--config", "run.toml", f"--run.dir={self.folder / 'runs'}", f"--redis.url={url}"]
        if service == "learner":
            given += [f"--learner.{key}={value}" for key, value in self.learner_settings.items()]
            if checkpoint.newest(self.run / "checkpoints"):
                given.append("--resume")
        return given

    def process(self, name: str) -> Process:
        return self._processes[name]

    def supervise(self) -> None:
        """Start what has died again. A learner that has finished stays finished."""
        for name, process in list(self._processes.items()):
            status = process.status
            if status is None or (name == "learner" and status == 0):
                continue
            self.deaths.append((name, status))
            self.start(name)

    def wait(self, condition: Callable[[], Any], what: str, seconds: float = 60.0) -> None:
        """Supervise until the condition holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            self.supervise()
            assert time.monotonic() < deadline, f"{what} did not happen in {seconds:.0f} s\n{self.told()}"
            time.sleep(0.01)

    def wait_for_step(self, step: int, seconds: float = 60.0) -> None:
        self.wait(lambda: self.step >= step, f"step {step}", seconds)

    def finish(self, seconds: float = 120.0) -> None:
        """Until the learner has done all its steps."""
        self.wait(lambda: self.process("learner").status == 0, "the end of the run", seconds)

    @property
    def step(self) -> int:
        """The newest step that the learner has told of. A learner that resumes falls back."""
        try:
            with (self.run / "metrics.jsonl").open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 20_000))
                whole = file.read().rpartition(b"\n")[0].splitlines()
            return int(whole[-1].partition(b'"step":')[2].partition(b",")[0]) if whole else 0
        except FileNotFoundError:
            return 0

    def workers(self, service: str) -> list[Mapping[str, Any]]:
        try:
            return list(list_workers(self.streams, service))
        except redis.RedisError:
            return []

    def told(self) -> str:
        """The last lines of every log, for people."""
        return (
            "\n".join(
                f"--- {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-15:])
                for path in sorted(self.folder.glob("*.log"))
            )
            + f"\ndeaths: {self.deaths}"
        )
