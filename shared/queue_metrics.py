"""How long the queues of a run are and how old what waits in them, for a service's Prometheus page."""

from collections.abc import Iterator, Sequence

import redis
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shared import scripts
from shared.stream import GROUPS, Streams


class QueueMetrics(Collector):
    """`rollstream_<service>_queue_...` by stream, asked of Redis at each scrape in one step.

    While Redis does not answer there are no samples: a length of 0 would be a lie.
    """

    def __init__(self, service: str, streams: Streams, names: Sequence[str]) -> None:
        self._prefix = f"rollstream_{service}_queue"
        self._names = names
        self._keys = [streams.key(name) for name in names]
        self._groups = [GROUPS.get(name, "") for name in names]  # type: ignore[call-overload]
        self._look = streams.client.register_script(scripts.QUEUES)

    def describe(self) -> list[Metric]:
        return list(self._families())

    def collect(self) -> Iterator[Metric]:
        length, pending, oldest = families = self._families()
        try:
            found = self._look(keys=self._keys, args=self._groups)
        except redis.RedisError:
            return
        for name, (entries, taken, age_ms) in zip(self._names, found, strict=True):
            length.add_metric([name], entries)
            oldest.add_metric([name], age_ms / 1000)
            if taken >= 0:
                pending.add_metric([name], taken)
        yield from families

    def _families(self) -> tuple[GaugeMetricFamily, GaugeMetricFamily, GaugeMetricFamily]:
        return (
            GaugeMetricFamily(f"{self._prefix}_length", "Entries on the stream", labels=["stream"]),
            GaugeMetricFamily(
                f"{self._prefix}_pending", "Entries given to a consumer and not finished", labels=["stream"]
            ),
            GaugeMetricFamily(
                f"{self._prefix}_oldest_seconds", "Age of the oldest entry; 0 if none", labels=["stream"]
            ),
        )
