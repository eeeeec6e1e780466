"""Publishing the policy: the weights go, all at once, to the live rollout servers that do not serve them.

A thread keeps looking for servers that joined, fell behind or diverged, also while the learner computes. It
shares nothing with the training loop but the update to push, so no server can hold up the learner or another.
"""

import logging
import threading
import time
from collections.abc import Collection
from concurrent.futures import FIRST_COMPLETED, Future, wait

import redis
from torch import Tensor

from services.learner.fleet import Fleet
from services.learner.prometheus import LearnerMetrics
from services.learner.weight_push import Push, PushFailed, PushRefused, Update
from shared.outage import insist
from shared.stream import Streams
from shared.workers import list_workers

log = logging.getLogger("rollstream.weights")

_FIRST_SECONDS = 30.0
"""How long a publication waits for a first server: without one there is nothing to train on."""
_OTHERS_SECONDS = 1.0
"""How long it waits for the others after that, or as long again as the first took."""
_OUTAGE_SECONDS = 120.0
_LOOK_SECONDS = 0.5
_CLOSE_SECONDS = 12.0
"""A look that Redis does not answer takes up to 10."""


class WeightPublisher:
    """Keeps every live rollout server at the version published last."""

    def __init__(
        self,
        streams: Streams,
        token: str,
        learner_epoch: int,
        metrics: LearnerMetrics,
        tokenizer: str | None = None,
    ) -> None:
        """
        Args:
            tokenizer: `vocabulary_digest` of the model, if it has one.
        """
        self._tokenizer = tokenizer
        self._streams = streams
        self._learner_epoch = learner_epoch
        self._metrics = metrics
        self._fleet = Fleet(streams, self._metrics)
        self._push = Push(token, self._metrics, self._fleet.digest)
        self._running: dict[str, Future[None]] = {}
        self._pushes: dict[str, Future[None]] = {}  # of the update, also those that have ended
        self._update: Update | None = None
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._keeper = threading.Thread(target=self._keep_looking, name="weights", daemon=True)
        self._keeper.start()

    def publish(self, tensors: dict[str, Tensor], version: int) -> None:
        """Make this the current policy and push it to every live server.

        Returns when all have it, or shortly after the first has: those that take longer get it meanwhile.
        """
        self.check()
        started = time.monotonic()
        update = Update(tensors, version, self._learner_epoch, self._tokenizer)
        with self._lock:
            self._update, self._pushes = update, {}
            self._fleet.published(update)
        self._metrics.policy_version.set(version)
        insist(self._look, _OUTAGE_SECONDS, lambda: None)
        _wait_for_most(self._first_pushes(started), started)
        with self._lock:
            self._collect()

    def _first_pushes(self, started: float) -> list["Future[None]"]:
        """Those of the update, whichever thread has started them. While every server still takes an earlier
        update, wait for one that is done with it."""
        while True:
            with self._lock:
                pushes, earlier = list(self._pushes.values()), list(self._running.values())
            patience = _FIRST_SECONDS - (time.monotonic() - started)
            if pushes or not earlier or patience <= 0:
                return pushes
            wait(earlier, timeout=patience, return_when=FIRST_COMPLETED)
            insist(self._look, _OUTAGE_SECONDS, lambda: None)

    def digest(self, version: int) -> str | None:
        """Of a version that was published here; None of any other."""
        return self._fleet.digest(version)

    def check(self) -> None:
        """Raise what ended the thread that keeps looking, if anything has."""
        if self._failure:
            raise self._failure

    def close(self) -> None:
        self._closing.set()
        self._keeper.join(timeout=_CLOSE_SECONDS)
        self._push.close()

    def _keep_looking(self) -> None:
        told = False
        while not self._closing.wait(_LOOK_SECONDS):
            if self._update is None:
                continue
            try:
                self._look()
                told = False
            except redis.RedisError as error:
                if not told:
                    log.warning("Redis does not tell which rollout servers live (%s); waiting for it", error)
                told = True
            except BaseException as error:
                self._failure = error
                return

    def _look(self) -> None:
        """Start a push to each server that needs one and is getting none."""
        servers = list_workers(self._streams, "rollout")
        with self._lock:
            self._collect()
            update = self._update
            assert update is not None
            for server in self._fleet.in_need(servers, update, self._running.keys()):
                future: Future[None] = Future()
                self._running[server["id"]] = self._pushes[server["id"]] = future
                # A thread each: one that hangs takes no other's place, nor keeps the process from ending.
                arguments = (server["url"], update, future)
                threading.Thread(target=self._carry, args=arguments, name="push", daemon=True).start()

    def _carry(self, url: str, update: Update, future: "Future[None]") -> None:
        try:
            self._push.to(url, update)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(None)

    def _collect(self) -> None:
        for id, future in [(id, future) for id, future in self._running.items() if future.done()]:
            del self._running[id]
            error = future.exception()
            if error is None:
                self._fleet.succeeded(id)
            elif isinstance(error, PushFailed):
                self._fleet.failed(id, "refused" if isinstance(error, PushRefused) else "unreachable")
                self._metrics.pushes.labels("failed").inc()
                log.warning("weights did not reach %s: %s", id, error)
                self._streams.event("push_failed", "learner", f"{id}: {error}")
            else:
                raise error


def _wait_for_most(pushes: Collection["Future[None]"], started: float) -> None:
    """Until all have ended, or for a while after the first has succeeded."""
    left = set(pushes)
    while left and time.monotonic() - started < _FIRST_SECONDS:
        patience = max(0.0, _FIRST_SECONDS - (time.monotonic() - started))
        done, left = wait(left, timeout=patience, return_when=FIRST_COMPLETED)
        if any(push.exception() is None for push in done):
            wait(left, timeout=max(_OTHERS_SECONDS, time.monotonic() - started))
            return
