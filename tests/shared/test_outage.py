"""Which failures of Redis are waited out."""

import pytest
import redis

from shared.outage import is_outage
from shared.stream import Streams


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
