"""The reward service as a process of its own, and its stream worker in a thread, on the session's Redis."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from services.reward.config import RewardConfig
from services.reward.core import ScoringCore
from services.reward.metrics import Metrics
from services.reward.worker import Worker
from shared.stream import Streams
from shared.workers import list_workers
from tests.conftest import RedisServer

Start = Callable[..., Worker]


def wait_for(condition: Callable[[], object], what: str, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain for: {what}"
        time.sleep(0.02)


class Service:
    """`python -m services.reward` (or `code` in its place), and what it wrote to standard error."""

    def __init__(
        self, folder: Path, arguments: list[str], environment: dict[str, str], code: str = ""
    ) -> None:
        self.errors = folder / f"stderr-{time.monotonic_ns()}"
        command = [sys.executable, *(["-c", code] if code else ["-m", "services.reward"]), *arguments]
        with self.errors.open("wb") as file:
            self.process = subprocess.Popen(
                command, stderr=file, stdout=subprocess.DEVNULL, env={**os.environ, **environment}
            )

    def stderr(self) -> str:
        return self.errors.read_text()

    def facts(self, streams: Streams) -> dict[str, object]:
        """Its heartbeat, once there is one."""
        found: list[dict[str, object]] = []

        def announced() -> bool:
            assert self.process.poll() is None, self.stderr()
            found[:] = [w for w in list_workers(streams, "reward") if w["pid"] == self.process.pid]
            return bool(found)

        wait_for(announced, "the service's heartbeat")
        return found[0]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=15)


class Launcher:
    """Starts services and ends them all."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        self._folder = folder
        self._redis_url = redis_url
        self._started: list[Service] = []

    def __call__(
        self, run: str, *options: str, environment: dict[str, str] | None = None, code: str = ""
    ) -> Service:
        config = self._folder / "run.toml"
        config.write_text(
            f'[run]\nname = "{run}"\n[model]\npath = "none"\n[redis]\nurl = "{self._redis_url}"\n'
            "[reward]\nport = 0\n"
        )
        service = Service(self._folder, ["--config", str(config), *options], environment or {}, code)
        self._started.append(service)
        return service

    def end(self) -> None:
        for service in self._started:
            service.process.kill()
            service.process.wait()


@pytest.fixture(scope="session")
def launch(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path_factory.mktemp("reward"), redis_server.url)
    yield launcher
    launcher.end()


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts workers and stops them all, none of which may have failed."""
    running: list[tuple[Worker, threading.Thread]] = []

    def start_worker(
        streams: Streams, scorer: str | dict[str, Any] = "gsm8k_reward_fn", max_attempts: int = 3
    ) -> Worker:
        scorers = {scorer: 1.0} if isinstance(scorer, str) else scorer
        table = {"scorers": scorers, "max_attempts": max_attempts, "retry_seconds": 0.01}
        config = RewardConfig.model_validate(table)
        worker = Worker(streams, ScoringCore(config), config, Metrics(), dict)
        thread = threading.Thread(target=worker.run)
        thread.start()
        running.append((worker, thread))
        return worker

    yield start_worker
    for worker, _ in running:
        worker.stop()
    for worker, thread in running:
        thread.join(timeout=20)
        assert not thread.is_alive()
        assert not worker.failed
