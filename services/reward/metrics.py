"""What `/metrics` shows, in Prometheus' text format. No label has a value that a request can invent.

The table of names is in docs/rest.md.
"""

import time
from collections.abc import Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.causes import CauseKind
from shared.scoring import ScoreResult

disable_created_metrics()  # a series more for each counter, which nobody asks for

SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)


class Metrics:
    """Counts of one service; its methods may be called from any thread."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "rollstream_reward_requests", "Requests answered", ["route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "rollstream_reward_request_seconds",
            "From the request's head to the answer's",
            ["route"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.items = Counter(
            "rollstream_reward_items", "Items scored over REST", ["status"], registry=self.registry
        )
        self.scorer_seconds = Histogram(
            "rollstream_reward_scorer_seconds",
            "One scorer's time for the items given to it at once, both doors",
            ["scorer"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.dead_letters = Counter(
            "rollstream_reward_dead_letters", "Groups given up, by cause", ["cause"], registry=self.registry
        )
        causes: tuple[CauseKind, ...] = ("malformed", "refused", "failed", "timeout")
        for cause in causes:
            self.dead_letters.labels(cause)  # shown as 0 from the start, so that a first increase is one
        self.failed_attempts = Counter(
            "rollstream_reward_failed_attempts",
            "Scorings of a group that left completions without a score, by cause",
            ["cause"],
            registry=self.registry,
        )
        for cause in ("failed", "timeout"):
            self.failed_attempts.labels(cause)
        self.groups = Counter(
            "rollstream_reward_groups", "Groups that left this replica", ["outcome"], registry=self.registry
        )
        for outcome in ("delivered", "dropped", "dead", "handed_back"):
            self.groups.labels(outcome)
        self.taken_over = Counter(
            "rollstream_reward_groups_taken_over",
            "Groups that dead workers had left",
            registry=self.registry,
        )
        self.waiting = Gauge(
            "rollstream_reward_requests_waiting", "Requests being served", registry=self.registry
        )

    def count_items(self, results: Sequence[ScoreResult]) -> None:
        statuses = [result.status for result in results]
        for status in set(statuses):
            self.items.labels(status).inc(statuses.count(status))

    def time_scorer(self, scorer: str, seconds: float) -> None:
        self.scorer_seconds.labels(scorer).observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self.registry)


class Measured:
    """ASGI middleware: every request counted by its route's pattern and its status, and timed."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        started = time.perf_counter()
        status = "500"

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, watch)
        finally:
            route = getattr(scope.get("route"), "path", "none")
            self._metrics.requests.labels(route, status).inc()
            self._metrics.seconds.labels(route).observe(time.perf_counter() - started)
