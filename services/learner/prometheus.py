"""What the learner tells Prometheus. The table of names is in docs/operations.md."""

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.causes import CAUSE_KINDS
from shared.experience import Group
from shared.stream import GROUPS

disable_created_metrics()  # a series more for each counter, which nobody asks for

_PREFIX = "rollstream_learner"
_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
_AGES = (0, 1, 2, 3, 4, 6, 8, 16, 32)
_STAGES = frozenset(GROUPS.values())
_COUNTS = {
    "groups_issued": ("issued", "Training groups issued"),
    "groups_trained": ("trained", "Training groups trained on"),
    "duplicates_prevented": ("duplicates", "Experiences dropped: trained on before, or arrived twice"),
}


class LearnerMetrics:
    """Counts of the learner; its methods may be called from any thread."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.policy_version = self._gauge("policy_version", "Version published last")
        self.step = self._gauge("step", "PPO steps done")
        self.step_seconds = self._histogram(
            "step_seconds", "PPO steps, from waiting for groups to publishing"
        )
        self.wait_seconds = self._histogram("wait_seconds", "How long steps waited for groups")
        self.tokens = Counter(
            f"{_PREFIX}_tokens_trained", "Completion tokens trained on", registry=self.registry
        )
        self.push_bytes = Counter(
            f"{_PREFIX}_push_bytes", "Bytes of weights that rollout servers took", registry=self.registry
        )
        self.pushes = Counter(
            f"{_PREFIX}_pushes", "Weight pushes, by how they ended", ["outcome"], registry=self.registry
        )
        self.push_seconds = Histogram(
            f"{_PREFIX}_push_seconds",
            "Weight pushes to one server, by phase",
            ["phase"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.servers = Gauge(
            f"{_PREFIX}_rollout_servers",
            "Live rollout servers, by what they serve",
            ["state"],
            registry=self.registry,
        )
        self._ages = _Ages()
        self.registry.register(self._ages)
        for outcome in ("served", "failed"):
            self.pushes.labels(outcome)

    def show_feed(
        self,
        counts: Mapping[str, int],
        deaths: Mapping[tuple[str, str], int],
        in_flight: Callable[[], int],
        credits: int,
    ) -> None:
        """
        Args:
            counts: of the feed, as they are at each scrape.
            deaths: dead letters by stage and kind of cause, likewise.
        """
        self.registry.register(_FeedCounts(counts, deaths))
        self._gauge("groups_in_flight", "Groups issued, not consumed").set_function(in_flight)
        self._gauge("credits", "Groups that may be in flight").set(credits)

    def count_step(self, step: int, groups: Iterable[Group], seconds: float, waited: float) -> None:
        """A batch was trained on at version `step - 1`."""
        self.step.set(step)
        self.step_seconds.observe(seconds)
        self.wait_seconds.observe(waited)
        for group in groups:
            self.tokens.inc(group.tokens)
            for completion in group.completions:
                for span in completion.version_spans:
                    self._ages.add(step - 1 - span.version, span.tokens)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"{_PREFIX}_{name}", text, registry=self.registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(f"{_PREFIX}_{name}", text, buckets=_SECONDS, registry=self.registry)


class _Ages(Collector):
    """Tokens trained on by age in versions. Prometheus' own histogram takes one observation at a time."""

    def __init__(self) -> None:
        self._tokens: Tally[int] = Tally()

    def add(self, age: int, tokens: int) -> None:
        self._tokens[age] += tokens

    def describe(self) -> list[Metric]:
        return [HistogramMetricFamily(f"{_PREFIX}_token_staleness", _AGES_TEXT)]

    def collect(self) -> Iterator[Metric]:
        tokens = dict(self._tokens)
        family = HistogramMetricFamily(f"{_PREFIX}_token_staleness", _AGES_TEXT)
        buckets = [(str(float(b)), sum(n for age, n in tokens.items() if age <= b)) for b in _AGES]
        buckets.append(("+Inf", sum(tokens.values())))
        family.add_metric([], buckets, sum_value=sum(age * n for age, n in tokens.items()))
        yield family


_AGES_TEXT = "Tokens trained on by how many versions old the policy was that sampled them"


class _FeedCounts(Collector):
    def __init__(self, counts: Mapping[str, int], deaths: Mapping[tuple[str, str], int]) -> None:
        self._counts = counts
        self._deaths = deaths

    def collect(self) -> Iterator[Metric]:
        for name, (key, text) in _COUNTS.items():
            yield CounterMetricFamily(f"{_PREFIX}_{name}", text, value=self._counts[key])
        dead = CounterMetricFamily(
            f"{_PREFIX}_dead_letters", "Groups given up, by who did and why", labels=["stage", "cause"]
        )
        for labels, count in self._bounded().items():
            dead.add_metric(labels, count)
        yield dead

    def _bounded(self) -> Tally[tuple[str, str]]:
        """Whoever writes to Redis writes letters, but makes no labels."""
        shown: Tally[tuple[str, str]] = Tally()
        for (stage, kind), count in list(self._deaths.items()):
            shown[stage if stage in _STAGES else "other", kind if kind in CAUSE_KINDS else "other"] += count
        return shown
