"""`python -m services.reward` as people and launchers meet it: starting, stopping, being killed."""

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from services.reward.__main__ import bind
from shared.stream import Streams, connect
from tests.conftest import RedisServer
from tests.reward.conftest import Launcher, wait_for
from tests.reward.groups import RIGHT, deliver, make_group

SLEEPY = """
import time
from services.reward.rules.table import RULES, Row
RULES["sleepy"] = Row(lambda item, config: time.sleep(600))
from services.reward.__main__ import main
main()
"""


def test_it_serves_both_doors_and_leaves_in_order(launch: Launcher, streams: Streams) -> None:
    service = launch(streams.run)
    facts = service.facts(streams)
    with httpx.Client(base_url=str(facts["url"])) as client:
        wait_for(lambda: client.get("/ready").status_code == 200, "readiness")
        assert client.get("/health").json() == {"status": "ok"}
        assert client.post("/v1/score", json={"items": []}).status_code == 200, "no token was set"
        deliver(streams, make_group("g1", [RIGHT]))
        wait_for(lambda: streams.client.xlen(streams.key("experiences")), "the experience")
        start = time.monotonic()
        assert service.stop() == 0
        assert time.monotonic() - start < 5
    assert streams.client.exists(streams.key(f"worker:{facts['id']}")) == 0
    assert "listening on http://127.0.0.1:" in service.stderr()
    assert "Traceback" not in service.stderr()


def test_readiness_tells_of_an_outage(launch: Launcher, tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    try:
        with connect(server.url) as connection:
            service = launch("ready", "--redis.url", server.url)
            url = str(service.facts(Streams(connection, "ready"))["url"])
        wait_for(lambda: httpx.get(f"{url}/ready").status_code == 200, "readiness")
        server.kill()
        wait_for(lambda: httpx.get(f"{url}/ready").status_code == 503, "the outage")
        assert "Redis cannot be used" in httpx.get(f"{url}/ready").text
        assert httpx.get(f"{url}/health").status_code == 200
        assert service.stop() == 0, "it stops without Redis too"
    finally:
        server.kill()


def test_what_a_killed_replica_held_is_scored_by_another(launch: Launcher, streams: Streams) -> None:
    names = [f"g{number}" for number in range(20)]
    deliver(streams, *(make_group(id, [RIGHT]) for id in names))
    victim = launch(streams.run, "--reward.scorers", "{ sleepy = 1.0 }", code=SLEEPY)
    name = victim.facts(streams)["id"]
    wait_for(lambda: len(streams.pending("rollouts", str(name))) == 20, "the victim's taking all groups")
    victim.process.send_signal(signal.SIGKILL)
    victim.process.wait()
    launch(streams.run).facts(streams)
    # Its last heartbeat has to expire first.
    wait_for(lambda: streams.client.xlen(streams.key("experiences")) == 20, "the take-over", seconds=40)
    assert sorted(entry.id for entry in streams.tail("experiences", 100)) == sorted(names)
    assert streams.client.xlen(streams.key("dead")) == 0


def test_an_error_of_ours_in_the_worker_ends_the_process_with_status_1(
    launch: Launcher, streams: Streams
) -> None:
    broken = (
        "from services.reward.worker import Worker\n"
        "def fail(self, attempt): raise AssertionError('ours')\n"
        "Worker._process = fail\n"
        "from services.reward.__main__ import main\n"
        "main()"
    )
    service = launch(streams.run, code=broken)
    service.facts(streams)
    deliver(streams, make_group("g1", [RIGHT]))
    assert service.process.wait(timeout=20) == 1
    assert "the stream worker failed, stopping" in service.stderr()


@pytest.mark.parametrize(
    ("options", "environment", "sentence"),
    [
        (["--reward.host", "0.0.0.0"], {}, "is open to other machines; set ROLLSTREAM_REWARD_TOKEN"),
        (["--reward.host", "0.0.0.0"], {"ROLLSTREAM_REWARD_TOKEN": ""}, "is open to other machines"),
        ([], {"ROLLSTREAM_REWARD_TOKEN": "short"}, "ROLLSTREAM_REWARD_TOKEN has 5 characters"),
        (["--reward.host", "192.0.2.1"], {"ROLLSTREAM_REWARD_TOKEN": "x" * 16}, "cannot listen on 192.0.2.1"),
        (["--reward.scorers", "{ gsm8k = 1.0 }"], {}, "unknown scorer 'gsm8k'"),
    ],
)
def test_a_start_that_cannot_succeed_says_why_in_one_sentence(
    launch: Launcher, options: list[str], environment: dict[str, str], sentence: str
) -> None:
    service = launch("never", *options, environment=environment)
    assert service.process.wait(timeout=20) == 2
    assert service.stderr().startswith("error: ")
    assert service.stderr().count("\n") == 1
    assert sentence in service.stderr()


def test_a_redis_that_does_not_come_is_waited_for_and_then_named(launch: Launcher) -> None:
    service = launch("never", "--redis.url", "redis://127.0.0.1:1/0")
    assert service.process.wait(timeout=20) == 2
    waiting, error = service.stderr().splitlines()
    assert "waiting for it" in waiting
    assert error.startswith("error: Redis at redis://127.0.0.1:1/0 cannot be used (Redis has not answered")


def test_a_port_in_use_is_named(launch: Launcher) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        service = launch("never", "--reward.port", str(port))
        assert service.process.wait(timeout=20) == 2
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in service.stderr()


def test_no_answer_waits_for_the_client_to_acknowledge_its_head() -> None:
    with (
        bind("127.0.0.1", 0, None) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as connection,
    ):
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_redis_that_may_evict_is_refused(launch: Launcher, tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    try:
        with connect(server.url) as client:
            client.config_set("maxmemory-policy", "allkeys-lru")
        service = launch("never", "--redis.url", server.url)
        assert service.process.wait(timeout=20) == 2
        assert "allkeys-lru" in service.stderr()
    finally:
        server.kill()


def test_help_and_configuration_are_printed_without_heavy_imports() -> None:
    code = (
        "import sys\n"
        "import services.reward.__main__\n"
        "print(sorted({'fastapi', 'uvicorn', 'redis', 'torch'} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
