"""Publishing the policy: the current weights go to every live rollout server that does not serve them yet.

A server that is slow, fails or comes later is brought up to date by `tend`, which the learner calls whenever
it waits; nobody waits for it.
"""

import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import httpx
import safetensors.torch
from torch import Tensor

from services.learner.prometheus import LearnerMetrics
from shared.outage import insist
from shared.stream import Streams
from shared.weights import PartInfo, TensorInfo, WeightManifest, WeightStatus, sha256
from shared.workers import list_workers

log = logging.getLogger("rollstream.weights")

PART_BYTES = 256 * 2**20
_GRACE_SECONDS = 30.0
_OUTAGE_SECONDS = 120.0
_TEND_SECONDS = 0.5


class PushFailed(RuntimeError):
    """A rollout server did not take an update; the message says why."""


class Update:
    """One version of the policy as it travels: a manifest and its safetensors parts."""

    def __init__(self, tensors: dict[str, Tensor], version: int, learner_epoch: int) -> None:
        groups: list[dict[str, Tensor]] = [{}]
        filled = 0
        for name, tensor in tensors.items():
            if filled and filled + tensor.nbytes > PART_BYTES:
                groups.append({})
                filled = 0
            groups[-1][name] = tensor.contiguous()
            filled += tensor.nbytes
        self.parts = [safetensors.torch.save(group) for group in groups]
        self.manifest = WeightManifest(
            version=version,
            learner_epoch=learner_epoch,
            tensors=[
                TensorInfo(name=name, dtype=_dtype(tensor), shape=list(tensor.shape), part=part)
                for part, group in enumerate(groups)
                for name, tensor in group.items()
            ],
            parts=[PartInfo(nbytes=len(data), sha256=sha256([data])) for data in self.parts],
        )

    @property
    def identity(self) -> tuple[int, str, int]:
        """Version, digest and learner epoch: what a server that has taken the update reports."""
        return self.manifest.version, self.manifest.digest, self.manifest.learner_epoch


class WeightPublisher:
    """Pushes updates to rollout servers, all at once, and retries those that missed one."""

    def __init__(
        self, streams: Streams, token: str, learner_epoch: int, metrics: LearnerMetrics | None = None
    ) -> None:
        self._streams = streams
        self._metrics = metrics or LearnerMetrics()
        self._learner_epoch = learner_epoch
        self._http = httpx.Client(headers={"Authorization": f"Bearer {token}"}, timeout=60.0)
        self._pool = ThreadPoolExecutor(max_workers=16, thread_name_prefix="push")
        self._running: dict[str, Future[None]] = {}
        self._update: Update | None = None
        self._next_tend = 0.0

    def publish(self, tensors: dict[str, Tensor], version: int) -> None:
        """Make this the current policy and push it to every live server, waiting a bounded time for them."""
        self._update = Update(tensors, version, self._learner_epoch)
        self._metrics.policy_version.set(version)
        insist(self._push_where_needed, _OUTAGE_SECONDS, lambda: None)
        wait(self._running.values(), timeout=_GRACE_SECONDS)
        self._collect()

    def tend(self) -> None:
        """Bring newcomers and stragglers to the current version, in the background."""
        if self._update is not None and time.monotonic() >= self._next_tend:
            self._next_tend = time.monotonic() + _TEND_SECONDS
            self._collect()
            self._push_where_needed()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._http.close()

    def _push_where_needed(self) -> None:
        update = self._update
        assert update is not None
        for worker in list_workers(self._streams, "rollout"):
            current = (worker.get("version"), worker.get("digest"), worker.get("learner_epoch"))
            if current != update.identity and worker["id"] not in self._running:
                self._running[worker["id"]] = self._pool.submit(self._push, worker, update)

    def _collect(self) -> None:
        for id, future in list(self._running.items()):
            if not future.done():
                continue
            del self._running[id]
            error = future.exception()
            self._metrics.pushes.labels("failed" if error else "served").inc()
            if isinstance(error, PushFailed):
                log.warning("weights did not reach %s: %s", id, error)
                self._streams.event("push_failed", "learner", f"{id}: {error}")
                self._next_tend = time.monotonic() + 2.0  # let a failing server breathe
            elif error is not None:
                raise error

    def _push(self, worker: dict[str, Any], update: Update) -> None:
        base = f"{worker['url']}/v1/weights/{update.manifest.version}"
        manifest, phase = update.manifest, self._metrics.push_seconds
        try:
            status = WeightStatus.model_validate_json(self._call("GET", f"{worker['url']}/v1/weights"))
            if (status.version, status.digest, status.learner_epoch) == update.identity:
                return  # its last heartbeat was older than its last update
            with phase.labels("open").time():
                self._call("POST", base, json=manifest.model_dump())
            for number, data in enumerate(update.parts):
                with phase.labels("send").time():
                    self._call("PUT", f"{base}/parts/{number}", content=data)
                self._metrics.push_bytes.inc(len(data))
            with phase.labels("commit").time():
                status = WeightStatus.model_validate_json(self._call("POST", f"{base}/commit"))
        except (httpx.HTTPError, ValueError) as error:
            raise PushFailed(f"{type(error).__name__}: {error}") from error
        if (status.version, status.digest) != (manifest.version, manifest.digest):
            raise PushFailed(f"it reports version {status.version} after a push of {manifest.version}")

    def _call(self, method: str, url: str, **arguments: Any) -> bytes:
        response = self._http.request(method, url, **arguments)
        if response.status_code >= 300:
            raise PushFailed(f"{method} {url} answered {response.status_code}: {response.text[:300]}")
        return response.content


def _dtype(tensor: Tensor) -> Any:
    return str(tensor.dtype).removeprefix("torch.")
