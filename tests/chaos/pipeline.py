"""One run of real processes that a test may strike: Redis, learner, reward service, rollout servers.

The processes that keep nothing are started again when they die, as an orchestrator would, and so is the
learner, with `--resume` once there is a checkpoint. Every death is noted: one that no strike explains fails
the audit.
"""

import os
import secrets
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis

from services.learner import checkpoint
from shared.stream import Streams, connect
from shared.workers import list_workers
from tests.chaos.process import Command, Fork, Process
from tests.chaos.proxy import Proxy
from tests.chaos.strikes import Strike
from tests.conftest import RedisServer, free_port

RUN = "chaos"


class Pipeline:
    """A run in a folder of its own, on a Redis of its own."""

    def __init__(
        self,
        folder: Path,
        workspace: Path,
        rollouts: int = 1,
        rewards: int = 1,
        vllm: bool = False,
        strikes: Mapping[str, Sequence[Strike]] | None = None,
        proxied: Sequence[str] = (),
        variables: Mapping[str, Mapping[str, str]] | None = None,
        **learner: Any,
    ) -> None:
        """
        Args:
            rollouts: how many rollout servers; they are named rollout0 and so on.
            rewards: how many reward replicas; the first is named reward, and the others reward1 and so on.
            vllm: whether they are the product's own, and not with an engine that is small and quick.
            strikes: what each process of a name suffers, one after the other.
            proxied: names of those who reach Redis through a proxy in `links`; "weights" for the learner
                on its way to the server rollout0.
            variables: environment variables of each name.
            learner: keys of the `[learner]` table.
        """
        self.folder = folder
        folder.mkdir(parents=True)
        self.run = folder / "runs" / RUN
        self.learner_settings = learner
        self.variables = {name: dict(own) for name, own in (variables or {}).items()}
        self.deaths: list[tuple[str, int]] = []
        """Processes that ended, in order: their name and exit status."""
        self.failures_allowed = 0
        """How many processes may end otherwise than by being killed."""
        self.strikes = {name: deque(planned) for name, planned in (strikes or {}).items()}
        self._vllm = vllm
        self._workspace = workspace
        self._token = secrets.token_hex(16)
        self._processes: dict[str, Process] = {}
        self._services = [f"reward{number or ''}" for number in range(rewards)]
        self._services += [f"rollout{number}" for number in range(rollouts)]
        self.redis = RedisServer(folder)
        self.client = connect(self.redis.url, timeout=2.0)
        self.streams = Streams(self.client, RUN)
        self._weights_port = free_port()
        self.links = {
            name: Proxy(self._weights_port if name == "weights" else self.redis.port) for name in proxied
        }

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
        for link in self.links.values():
            link.close()
        self.client.close()
        self.redis.kill()

    def start(self, name: str) -> Process:
        """Start a service anew, whatever became of the process that had this name."""
        service = name.rstrip("0123456789")
        log, arguments = self.folder / f"{name}.log", self._arguments(service, name)
        variables = {"ROLLSTREAM_TOKEN": self._token, **self.variables.get(name, {})}
        if self.strikes.get(name):
            variables |= self.strikes[name].popleft().variables()
        ranks = self.learner_settings.get("ranks", 1)
        process: Process
        if service == "learner" and ranks == 1:
            process = Fork(service, arguments, log, self._workspace, variables)
        else:
            command = ["-m", "tests.chaos.service", service, *arguments]
            if service == "rollout" and self._vllm:
                command = ["-m", "services.rollout", *arguments]
            if service == "learner":
                torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
                command = [*torchrun, *command]
            process = Command(command, log, self._workspace, variables)
        self._processes[name] = process
        return process

    def _arguments(self, service: str, name: str) -> list[str]:
        port = self.links[name].port if name in self.links else self.redis.port
        given = ["--config", "run.toml", f"--run.dir={self.folder / 'runs'}"]
        given.append(f"--redis.url=redis://127.0.0.1:{port}/0")
        if name == "rollout0" and "weights" in self.links:
            given += [
                f"--rollout.port={self._weights_port}",
                f"--rollout.url=http://127.0.0.1:{self.links['weights'].port}",
            ]
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
            assert self._failures() <= self.failures_allowed, f"it ended by itself: {name}\n{self.told()}"
            self.start(name)

    def _failures(self) -> int:
        return sum(status != -signal.SIGKILL for _, status in self.deaths)

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

    def events(self, kind: str) -> list[str]:
        """What the services told people of this kind, the oldest first."""
        return [e.fields["text"] for e in self.streams.tail("events", 10_000) if e.fields["kind"] == kind]

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
