"""What the user got wrong is said in one sentence, before the long start, with a status that is not 0."""

import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import LlamaForCausalLM

from services.rollout.__main__ import bind, reachable_url
from services.rollout.config import RolloutConfig
from shared.stream import connect
from tests.conftest import RedisServer
from tests.rollout.server import TOKEN


def start(config: Path, *arguments: str, token: str = TOKEN) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "services.rollout", "--config", str(config), *arguments],
        env={**os.environ, "ROLLSTREAM_TOKEN": token},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def config(tmp_path: Path, redis_server: RedisServer, tied_model: tuple[Path, LlamaForCausalLM]) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(f"[model]\npath = '{tied_model[0]}'\n[redis]\nurl = '{redis_server.url}'\n"
                    "[rollout]\nport = 0\n")  # fmt: skip
    return path


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--model.path", "/nowhere"), "no config.json"),
        (("--redis.url", "redis://127.0.0.1:1/0"), "127.0.0.1:1/0 cannot be used"),
        (("--rollout.prot", "8000"), "Did you mean 'port'?"),
        (("--rollout.port", "many"), "rollout.port"),
        (("--rollout.url", "http://host:80000"), "write it as http://host:8000"),
    ],
)
def test_bad_settings_are_told_in_one_sentence(config: Path, arguments: tuple[str, str], said: str) -> None:
    ended = start(config, *arguments)
    assert ended.returncode != 0 and said in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_missing_token_is_told(config: Path) -> None:
    ended = start(config, token="")
    assert ended.returncode != 0 and "ROLLSTREAM_TOKEN is not set" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_port_in_use_is_told(config: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = start(config, "--rollout.port", str(port))
    assert ended.returncode != 0 and f"port {port} on 127.0.0.1 is in use" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_redis_that_evicts_is_refused(config: Path, tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    try:
        with connect(server.url) as client:
            client.config_set("maxmemory-policy", "allkeys-lru")
        ended = start(config, "--redis.url", server.url)
    finally:
        server.kill()
    assert ended.returncode != 0 and "allkeys-lru" in ended.stderr and "Traceback" not in ended.stderr


def test_a_model_without_safetensors_is_told(config: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    ended = start(config, "--model.path", str(tmp_path))
    assert ended.returncode != 0 and "no *.safetensors" in ended.stderr


def test_a_setting_that_vllm_refuses_is_told(config: Path) -> None:
    ended = start(config, "--rollout.max_model_len", "100000")
    assert ended.returncode != 0 and "the engine does not start" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_print_config_takes_less_than_a_second_of_cpu(config: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = start(config, "--print-config")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert ended.returncode == 0 and '"rollout"' in ended.stdout
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_the_url_given_out_is_never_a_wildcard(host: str) -> None:
    with socket.create_server((host, 0)) as listener:
        port = listener.getsockname()[1]
        assert reachable_url(listener, "redis://:secret@127.0.0.1:6379/0") == f"http://127.0.0.1:{port}"


def test_no_answer_waits_for_the_client_to_acknowledge_its_head() -> None:
    with bind(RolloutConfig(port=0)) as listener:
        listener.listen()
        with socket.create_connection(listener.getsockname()), listener.accept()[0] as connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
