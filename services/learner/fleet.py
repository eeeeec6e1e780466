"""What the learner knows of the rollout servers: what each serves, and when to try one again."""

import logging
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from services.learner.prometheus import LearnerMetrics
from services.learner.weight_push import Update
from shared.stream import Streams

log = logging.getLogger("rollstream.weights")

State = Literal["current", "behind", "diverged", "refused", "unreachable"]
STATES: tuple[State, ...] = ("current", "behind", "diverged", "refused", "unreachable")

_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 15.0
_PATIENCE_SECONDS = 5.0
"""How long a server may be behind, while no push to it runs, before people are told: each is, for a moment,
after every step."""


class Fleet:
    """The live rollout servers, and what each serves compared to what the learner has published."""

    def __init__(self, streams: Streams, metrics: LearnerMetrics) -> None:
        self._streams = streams
        self._metrics = metrics
        self._digests: dict[int, str] = {}
        self._retries: dict[str, tuple[float, float]] = {}  # id -> when to try again, the pause after that
        self._failures: dict[str, State] = {}
        self._behind_since: dict[str, float] = {}
        self._told: dict[str, State] = {}
        self._without_url: set[str] = set()

    def published(self, update: Update) -> None:
        """What the learner stands for from now on."""
        self._digests[update.version] = update.digest

    def digest(self, version: int) -> str | None:
        """Of a version that this learner has published."""
        return self._digests.get(version)

    def in_need(
        self, servers: Sequence[Mapping[str, Any]], update: Update, taking: Collection[str]
    ) -> list[Mapping[str, Any]]:
        """Those that do not serve `update` and are due for a push. People are told of those that stay so.

        Args:
            taking: ids of those to which a push runs: it will end in one way or the other.
        """
        servers = [server for server in servers if self._can_be_reached(server)]
        now, states = time.monotonic(), {server["id"]: self._state(server, update) for server in servers}
        self._tell(states, {server["id"]: server for server in servers}, taking, now)
        behind = [server for server in servers if states[server["id"]] != "current"]
        due = [server for server in behind if server["id"] not in taking]
        return [server for server in due if self._retries.get(server["id"], (0.0, 0.0))[0] <= now]

    def failed(self, id: str, how: State) -> None:
        """A push did not succeed: the next waits, longer each time, and nobody else does."""
        self._failures[id] = how
        _, pause = self._retries.get(id, (0.0, _FIRST_PAUSE_SECONDS))
        self._retries[id] = time.monotonic() + pause, min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def succeeded(self, id: str) -> None:
        self._retries.pop(id, None)
        self._failures.pop(id, None)

    def _can_be_reached(self, server: Mapping[str, Any]) -> bool:
        if server.get("state") == "leaving":
            return False
        if server.get("url"):
            return True
        if server["id"] not in self._without_url:
            log.warning("%s tells no url in its heartbeat: it gets no weights", server["id"])
            self._without_url.add(server["id"])
        return False

    def _state(self, server: Mapping[str, Any], update: Update) -> State:
        version, digest, epoch = (server.get(key) for key in ("version", "digest", "learner_epoch"))
        if (version, digest, epoch) == update.identity:
            return "current"
        ours = version is not None and epoch == update.manifest.learner_epoch
        if ours and self._digests.get(version) != digest:  # type: ignore[arg-type]
            return "diverged"  # this learner never published it, or not as this version
        return self._failures.get(server["id"], "behind")

    def _tell(
        self, states: Mapping[str, State], servers: Mapping[str, Any], taking: Collection[str], now: float
    ) -> None:
        counted = Counter(states.values())
        for state in STATES:
            self._metrics.servers.labels(state).set(counted[state])
        for known in (self._retries, self._failures, self._behind_since, self._told):
            for id in known.keys() - states.keys():  # they are gone
                del known[id]  # type: ignore[attr-defined]
        for id, state in states.items():
            if state == "current" or id in taking:
                self._behind_since.pop(id, None)
            if state == "behind" and (
                id in taking or now - self._behind_since.setdefault(id, now) < _PATIENCE_SECONDS
            ):
                continue
            if state != self._told.get(id, "current"):
                self._tell_of(servers[id], state)
                self._told[id] = state

    def _tell_of(self, server: Mapping[str, Any], state: State) -> None:
        text = f"{server['id']} is {state}, serving version {server.get('version')}"
        if state == "current":
            log.info("%s again", text)
        else:
            log.warning("%s: it gets the weights anew", text)
        self._streams.event("server", "learner", text)
