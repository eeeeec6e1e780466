"""What `/metrics` shows of this server, in Prometheus' text format. The table is in docs/operations.md."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import (
    REGISTRY,
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.causes import CauseKind

disable_created_metrics()  # a series more for each counter, which nobody asks for

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
_GAUGES = {
    "policy_version": "Version served; absent until the learner has confirmed one",
    "groups_in_flight": "Prompts being answered",
    "groups_limit": "Prompts that may be answered at once",
    "engine_running_requests": "Completions that the engine computes in each step",
    "engine_waiting_requests": "Completions that wait for room in the engine",
    "engine_kv_cache_use": "Share of the cache for keys and values in use, 0 to 1",
}


class RolloutMetrics:
    """Counts of one server; its methods may be called from any thread."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.groups = self._counter(
            "groups",
            "Prompts that left this server, by how",
            "outcome",
            ("delivered", "handed_back", "dead", "dropped"),
        )
        causes: tuple[CauseKind, ...] = ("malformed", "refused", "failed")
        self.dead_letters = self._counter("dead_letters", "Prompts given up, by cause", "cause", causes)
        self.tokens = self._counter("tokens_generated", "Completion tokens delivered")
        self.taken_over = self._counter("prompts_taken_over", "Prompts that dead workers had left")
        self.generate_seconds = self._histogram(
            "generate_seconds", "From a prompt's admission to its last completion"
        )
        self.weight_bytes = self._counter("weight_bytes", "Bytes of weight updates received")
        self.weight_updates = self._counter(
            "weight_updates", "Weight updates, by how they ended", "outcome", ("served", "failed")
        )
        self.divergences = self._counter(
            "divergences", "How often the weights served were not what the learner had published"
        )
        self.weight_seconds = self._histogram(
            "weight_update_seconds", "Parts of a weight update, by phase", ["phase"]
        )

    def show(self, facts: Callable[[], Mapping[str, Any]]) -> None:
        """facts: numbers of this moment, by name; those without a value are left out."""
        self.registry.register(_Facts(facts))

    def text(self) -> bytes:
        """Ours, then what the libraries in this process count: vLLM, and the process itself."""
        return generate_latest(self.registry) + generate_latest(REGISTRY)

    def _counter(self, name: str, text: str, label: str = "", values: Sequence[str] = ()) -> Counter:
        labels = [label] if label else []
        counter = Counter(f"rollstream_rollout_{name}", text, labels, registry=self.registry)
        for value in values:
            counter.labels(value)  # shown as 0 from the start, so that a first increase is one
        return counter

    def _histogram(self, name: str, text: str, labels: Sequence[str] = ()) -> Histogram:
        return Histogram(f"rollstream_rollout_{name}", text, labels, buckets=_SECONDS, registry=self.registry)


class _Facts(Collector):
    def __init__(self, facts: Callable[[], Mapping[str, Any]]) -> None:
        self._facts = facts

    def describe(self) -> list[Metric]:
        return [GaugeMetricFamily(f"rollstream_rollout_{name}", text) for name, text in _GAUGES.items()]

    def collect(self) -> Iterator[Metric]:
        facts = self._facts()
        for name, text in _GAUGES.items():
            if facts.get(name) is not None:
                yield GaugeMetricFamily(f"rollstream_rollout_{name}", text, value=facts[name])
