"""The local stack of one run: Redis if needed, rollout, reward, learner, each a process of its own."""

import os
import secrets
import socket
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from typing import Any

import redis

from services.console import redis_process
from services.console.child import Child
from services.console.launcher import Launcher
from services.console.resolved import Resolved
from services.console.screen import Screen
from shared.stream import Streams, check_server
from shared.workers import list_workers

READINESS = {"rollout": "/health", "reward": "/ready"}
"""Where a service answers once a learner can use it. A rollout server is `/ready` only after a push."""
LINES_SHOWN = 15


class StackError(RuntimeError):
    """A service cannot be started or kept alive; the message says which, and shows the end of its log."""

    def __init__(self, message: str, exit_status: int | None = None) -> None:
        super().__init__(message)
        self.exit_status = exit_status or 1


class Stack:
    """Starts the services, restarts the stateless ones, and lasts as long as the learner."""

    def __init__(self, resolved: Resolved, launcher: Launcher, screen: Screen, client: "redis.Redis") -> None:
        self._resolved = resolved
        self._launcher = launcher
        self._screen = screen
        self._children: dict[str, Child] = {}
        self._restarts: Counter[str] = Counter()
        self._logs = resolved.run.path / "logs"
        self._token = os.environ.get("ROLLSTREAM_TOKEN") or secrets.token_urlsafe(32)
        self._client = client
        self._streams = Streams(client, resolved.run.name)

    def start_redis(self) -> None:
        """Start Redis if the configured one is local and does not run, and see that it is fit.

        Raises:
        ValueError: a port that a service needs is in use, or Redis is not fit.
        StackError: Redis does not start.
        """
        for service in READINESS:
            _check_port(service, **self._address(service))
        if redis_process.must_be_started(self._resolved.redis_url):
            self._start("redis")
            self._wait_for("redis", lambda _: redis_process.answers(self._client))
        check_server(self._client, self._resolved.redis_url)

    def start_services(self) -> None:
        """Start rollout, reward and learner at once, and wait until the first two answer.

        Raises:
        StackError: a service ended, or did not answer in time.
        """
        for service in (*READINESS, "learner"):
            self._start(service)
        for service in READINESS:
            self._wait_for(service, self._is_ready)
            self._screen.say(service, "ready")

    def run(self, tick: Callable[[], None]) -> int:
        """Keep the services alive until the learner ends, and give its exit status; `tick` twice a second."""
        while not self._launcher.wait(self._learner_has_ended, seconds=0.5):
            self._repeat_logs()
            self._restart_the_dead()
            tick()
        self._repeat_logs()
        tick()
        status = self._children["learner"].exit_status()
        assert status is not None
        if status:
            self._screen.say("learner", self._epitaph("learner"), "bold red")
        return status

    def _start(self, service: str) -> None:
        self._screen.say(service, f"starting, output in {self._logs / service}.log")
        self._children[service] = self._launcher.start(
            service, self._command(service), self._logs / f"{service}.log", self._environment(service)
        )

    def _command(self, service: str) -> list[str]:
        if service == "redis":
            url, folder = self._resolved.redis_url, self._resolved.run.path / "redis"
            return [redis_process.find_binary(), str(redis_process.write_config(url, folder))]
        ranks = self._resolved.tables["learner"]["ranks"] if service == "learner" else 1
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        start = [sys.executable, *(torchrun if ranks > 1 else [])]
        return [*start, "-m", f"services.{service}", *self._resolved.arguments]

    def _environment(self, service: str) -> dict[str, str]:
        if service == "redis":
            return {}
        console = self._resolved.console
        threads = {"learner": console.learner_threads, "reward": console.reward_threads}.get(service)
        given = {"OMP_NUM_THREADS": threads, "CUDA_VISIBLE_DEVICES": console.gpus.get(service)}
        return {
            "ROLLSTREAM_TOKEN": self._token,
            **{name: str(value) for name, value in given.items() if value is not None},
        }

    def _address(self, service: str) -> dict[str, Any]:
        table = self._resolved.tables[service]
        return {"host": table["host"], "port": table["port"]}

    def _wait_for(self, service: str, is_ready: Callable[[str], bool]) -> None:
        """Wait for a service, and meanwhile notice if any other ends."""
        started = time.monotonic()

        def settled() -> bool:
            self._repeat_logs()
            for name, child in self._children.items():
                if child.exit_status() is not None:
                    raise StackError(self._epitaph(name), child.exit_status())
            return is_ready(service)

        limit = self._resolved.console.ready_timeout
        while not self._launcher.wait(settled, seconds=min(10.0, limit)):
            waited = time.monotonic() - started
            if waited >= limit:
                raise StackError(f"{service} was not ready after {waited:.0f} s\n{self._last_lines(service)}")
            self._screen.say(service, f"still starting after {waited:.0f} s", "dim")

    def _is_ready(self, service: str) -> bool:
        """Whether this very process has announced itself and answers."""
        try:
            workers = list_workers(self._streams, service)
        except redis.RedisError:
            return False
        urls = [facts["url"] for facts in workers if facts["pid"] == self._children[service].group]
        return bool(urls) and _answers(urls[0] + READINESS[service])

    def _learner_has_ended(self) -> bool:
        return self._children["learner"].exit_status() is not None

    def _restart_the_dead(self) -> None:
        for service, child in self._children.items():
            if service == "learner" or child.exit_status() is None:
                continue
            self._screen.say(service, self._epitaph(service), "bold red")
            self._launcher.stop(child)
            if self._restarts[service] == self._resolved.console.max_restarts:
                raise StackError(
                    f"{service} died {self._restarts[service] + 1} times; giving up (console.max_restarts)"
                )
            self._restarts[service] += 1
            self._start(service)

    def _repeat_logs(self) -> None:
        for service, child in self._children.items():
            for line in child.new_lines():
                self._screen.repeat(service, line)

    def _epitaph(self, service: str) -> str:
        status = self._children[service].exit_status()
        return f"{service} ended with status {status}; the end of its log:\n{self._last_lines(service)}"

    def _last_lines(self, service: str) -> str:
        child = self._children[service]
        return (
            "\n".join(f"    {line}" for line in child.last_lines(LINES_SHOWN)) or "    (it printed nothing)"
        )


def _check_port(service: str, host: str, port: int) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ValueError(
                f"{service} cannot listen on {host}:{port}: {error.strerror}. "
                f"Stop what listens there, or set --{service}.port to another (0 takes any)."
            ) from error


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False
