"""Queue lengths and ages for Prometheus, from a real Redis."""

from pathlib import Path

from prometheus_client import CollectorRegistry

from shared.queue_metrics import QueueMetrics
from shared.stream import Streams, connect
from tests.conftest import RedisServer


def samples(registry: CollectorRegistry) -> dict[tuple[str, str], float]:
    return {
        (sample.name.removeprefix("rollstream_test_queue_"), sample.labels["stream"]): sample.value
        for family in registry.collect()
        for sample in family.samples
    }


def shown(streams: Streams) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(QueueMetrics("test", streams, ("prompts", "experiences", "dead")))
    return registry


def test_lengths_pending_entries_and_ages_are_those_of_the_streams(streams: Streams) -> None:
    registry = shown(streams)
    client, key = streams.client, streams.key("prompts")
    seconds, _ = client.time()  # type: ignore[misc]
    for number in range(3):
        client.xadd(key, {"payload": b"x"}, id=f"{(seconds - 60) * 1000 + number}-0")
    client.xreadgroup("rollout", "someone", {key: ">"}, count=2)
    seen = samples(registry)
    assert (seen["length", "prompts"], seen["pending", "prompts"]) == (3, 2)
    assert 59 <= seen["oldest_seconds", "prompts"] < 120
    assert (seen["length", "experiences"], seen["oldest_seconds", "experiences"]) == (0, 0)
    assert seen["length", "dead"] == 0 and ("pending", "dead") not in seen


def test_a_lost_stream_has_length_0_and_nothing_pending(streams: Streams) -> None:
    streams.client.delete(streams.key("prompts"))
    seen = samples(shown(streams))
    assert seen["length", "prompts"] == 0 and ("pending", "prompts") not in seen


def test_without_redis_there_are_no_numbers(tmp_path: Path) -> None:
    redis = RedisServer(tmp_path)
    with connect(redis.url, timeout=0.5) as client:
        registry = shown(Streams(client, "outage"))
        assert samples(registry)
        redis.kill()
        assert not samples(registry)
