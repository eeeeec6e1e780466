"""`rollstream up` as a whole, with stand-ins for the services and a real Redis."""

import os
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.console import redis_process
from tests.conftest import RedisServer, free_port
from tests.console.processes import pid_in, runs, wait_until

ROOT = Path(__file__).parents[2]
SERVICES = ("rollout", "reward", "learner")


class Up:
    """A folder with a config file and stand-in services, in which `rollstream up` runs."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        self.folder = folder
        for service in SERVICES:
            room = folder / "fakes" / "services" / service
            room.mkdir(parents=True)
            (room / "__main__.py").write_text(
                f"from tests.console.fake_service import run\n\nrun({service!r})\n"
            )
        (folder / "run.toml").write_text(
            f"[run]\nname = 'up-{os.getpid()}-{folder.name}'\ndir = '{folder}/runs'\n"
            f"[model]\npath = 'model'\n[redis]\nurl = '{redis_url}'\n"
        )
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *overrides: str) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": f"{self.folder}/fakes:{ROOT}",
            "FAKE_SERVICES": str(self.folder),
        }
        command = [sys.executable, "-m", "services.console", "up", "--config", "run.toml", *overrides]
        with (self.folder / "output").open("w") as output:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def wait_until_ready(self) -> None:
        wait_until(lambda: "reward  ready" in (self.folder / "output").read_text())
        self.pid("learner")

    def end(self) -> tuple[int, str]:
        assert self.process
        return self.process.wait(timeout=120), (self.folder / "output").read_text()

    def say(self, name: str, text: object = "") -> None:
        (self.folder / name).write_text(f"{text}")

    def pid(self, service: str) -> int:
        return pid_in(self.folder / f"{service}.pid")

    def ends(self) -> list[str]:
        return (self.folder / "ends").read_text().split()


@pytest.fixture
def up(tmp_path: Path, redis_server: RedisServer) -> Iterator[Up]:
    made = Up(tmp_path, redis_server.url)
    yield made
    if made.process and made.process.poll() is None:
        made.process.terminate()
        made.process.wait(timeout=120)


def test_the_learners_exit_status_is_passed_on_and_nobody_stays(up: Up) -> None:
    up.start()
    pids = [up.pid(service) for service in SERVICES]
    up.say("learner.finish", 7)
    status, output = up.end()
    assert status == 7
    assert "learner ended with status 7" in output
    assert "rollout ready" in output and "reward  ready" in output and "learner at work" in output
    assert not any(map(runs, pids))


def test_each_service_sees_the_gpus_it_is_given(up: Up) -> None:
    up.start("--console.gpus", '{ rollout = "0", learner = "1,2" }')
    seen = {}
    for service in SERVICES:
        environment = Path(f"/proc/{up.pid(service)}/environ").read_bytes().split(b"\0")
        given = dict(variable.partition(b"=")[::2] for variable in environment)
        seen[service] = given.get(b"CUDA_VISIBLE_DEVICES")
    assert seen["rollout"] == b"0" and seen["learner"] == b"1,2"
    assert seen["reward"] == os.environb.get(b"CUDA_VISIBLE_DEVICES")
    up.say("learner.finish", 0)
    up.end()


@pytest.mark.parametrize(("signum", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_everything_the_learner_first(up: Up, signum: int, expected: int) -> None:
    up.start()
    pids = [up.pid(service) for service in SERVICES]
    assert up.process
    up.process.send_signal(signum)
    status, output = up.end()
    assert status == expected
    assert f"stopped by {signal.Signals(signum).name}" in output
    assert up.ends() == ["learner", "reward", "rollout"]
    assert not any(map(runs, pids))


def test_a_dead_rollout_process_is_told_of_and_replaced(up: Up) -> None:
    up.start()
    up.wait_until_ready()
    first = up.pid("rollout")
    (up.folder / "rollout.pid").unlink()
    os.kill(first, signal.SIGKILL)
    assert up.pid("rollout") != first
    up.say("learner.finish", 3)
    status, output = up.end()
    assert status == 3
    assert "rollout ended with status 137" in output


def test_a_process_that_dies_too_often_ends_the_run(up: Up) -> None:
    up.start("--console.max_restarts", "1")
    up.wait_until_ready()
    up.say("reward.exit", 5)
    os.kill(up.pid("reward"), signal.SIGKILL)
    status, output = up.end()
    assert status == 1
    assert "reward died 2 times; giving up (console.max_restarts)" in output
    assert up.ends() == ["learner", "rollout"]


def test_a_service_that_fails_at_its_start_ends_the_run_with_its_last_lines(up: Up) -> None:
    up.say("rollout.exit", 2)
    up.start()
    status, output = up.end()
    assert status == 2
    assert "rollout ended with status 2" in output
    assert "boom: the last line before the end" in output


def test_a_service_that_does_not_answer_in_time_ends_the_run(up: Up) -> None:
    room = up.folder / "fakes" / "services" / "rollout" / "__main__.py"
    room.write_text(room.read_text().replace("run('rollout')", "import sys, time\n\n") + (
        "if '--print-config' in sys.argv:\n    run('rollout')\ntime.sleep(600)\n"
    ))  # fmt: skip
    up.start("--console.ready_timeout", "1")
    status, output = up.end()
    assert status == 1
    assert "rollout was not ready after 1 s" in output


def test_a_port_in_use_is_told_before_anything_starts(up: Up) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        up.start("--reward.port", str(port))
        status, output = up.end()
    assert status == 2
    assert f"reward cannot listen on 127.0.0.1:{port}: Address already in use" in output
    assert "Traceback" not in output
    assert not (up.folder / "runs").exists()


def test_a_mistake_in_any_services_table_is_told_before_anything_starts(up: Up) -> None:
    up.start("--redis.ulr", "redis://elsewhere", "--learner.steps", "many")
    status, output = up.end()
    assert status == 2
    assert "unknown key 'redis.ulr'. Did you mean 'url'?" in output
    assert not (up.folder / "runs").exists()


def test_redis_is_started_where_none_runs_and_stopped_at_the_end(up: Up) -> None:
    port = free_port()
    url = f"redis://:secret@127.0.0.1:{port}/0"
    up.start("--redis.url", url)
    up.pid("learner")
    assert redis_process.is_listening("127.0.0.1", port)
    up.say("learner.finish", 4)
    status, output = up.end()
    assert status == 4
    assert "secret" not in output
    (saved,) = (up.folder / "runs").glob("*/config.toml")
    tables = tomllib.loads(saved.read_text())
    assert tables["redis"]["url"] == url.replace("secret", "***") and tables["learner"]["steps"] == 1
    assert not redis_process.is_listening("127.0.0.1", port)
    assert (up.folder / "ends").read_text()


def test_a_redis_that_dies_is_started_again_with_its_data(up: Up) -> None:
    port = free_port()
    up.start("--redis.url", f"redis://127.0.0.1:{port}/0")
    up.wait_until_ready()
    (pid,) = redis_pids(port)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: redis_pids(port) not in ([], [pid]))
    wait_until(lambda: redis_process.is_listening("127.0.0.1", port))
    up.say("learner.finish", 6)
    status, output = up.end()
    assert status == 6
    assert "redis ended with status 137" in output


def test_a_redis_that_may_evict_is_refused(up: Up, tmp_path: Path) -> None:
    folder = tmp_path / "evicting"
    folder.mkdir()
    server = RedisServer(folder)
    try:
        server.kill()
        server.start("--maxmemory-policy", "allkeys-lru")
        up.start("--redis.url", server.url)
        status, output = up.end()
    finally:
        server.kill()
    assert status == 2
    assert "maxmemory-policy 'allkeys-lru'" in output


def redis_pids(port: int) -> list[int]:
    """Processes that run redis-server on the port."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if b"redis-server" in command and f":{port}".encode() in command and runs(int(folder.name)):
            found.append(int(folder.name))
    return found
