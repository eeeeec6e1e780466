"""Which failures of Redis are waited out."""

from pathlib import Path
from typing import Any

import pytest
import redis

from shared.outage import is_outage
from shared.stream import Streams, check_server
from tests.conftest import RedisServer


def test_a_full_redis_is_waited_for_whichever_command_it_refuses(streams: Streams) -> None:
    """redis-py cuts the word OOM off the answers to plain commands, but not to scripts."""
    key = streams.key("x")
    script = streams.client.register_script("return redis.call('SET', KEYS[1], '1')")
    streams.client.config_set("maxmemory", 1)
    try:
        for command in (lambda: streams.client.set(key, "1"), lambda: script(keys=[key])):
            with pytest.raises(redis.RedisError) as refused:
                command()
            assert is_outage(refused.value)
    finally:
        streams.client.config_set("maxmemory", 0)
    with pytest.raises(redis.RedisError) as mistake:
        streams.client.execute_command("SET", key)
    assert not is_outage(mistake.value)


def test_a_service_that_starts_waits_for_a_redis_that_is_starting_too(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    server.kill()

    class StartsRedisOnFailure(redis.Redis):
        def info(self, *sections: Any, **named: Any) -> Any:
            try:
                return super().info(*sections, **named)
            except redis.ConnectionError:
                server.start()
                raise

    try:
        with StartsRedisOnFailure.from_url(server.url) as client:
            check_server(client, server.url)
    finally:
        server.kill()
