"""One weight update on its way to one rollout server, within a bounded time."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import safetensors.torch
from torch import Tensor

from services.learner.prometheus import LearnerMetrics
from shared.weights import PartInfo, TensorInfo, WeightManifest, WeightStatus, sha256

PART_BYTES = 256 * 2**20
CALL_SECONDS = 60.0
"""How long a server may leave a request without any answer or progress."""
LEAST_RATE = 10 * 2**20
"""Bytes per second: a server that takes an update more slowly than this is given up."""
_CHUNK_BYTES = 2**20


class PushFailed(RuntimeError):
    """A rollout server did not take an update; the message says why."""


class PushRefused(PushFailed):
    """It answered that it does not."""


class Update:
    """One version of the policy as it travels: a manifest and its safetensors parts."""

    def __init__(
        self, tensors: dict[str, Tensor], version: int, learner_epoch: int, tokenizer: str | None = None
    ) -> None:
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
            tokenizer=tokenizer,
            tensors=[
                TensorInfo(name=name, dtype=_dtype(tensor), shape=list(tensor.shape), part=part)
                for part, group in enumerate(groups)
                for name, tensor in group.items()
            ],
            parts=[PartInfo(nbytes=len(data), sha256=sha256([data])) for data in self.parts],
        )
        self.digest = self.manifest.digest

    def manifest_for(self, status: WeightStatus, published: str | None) -> WeightManifest:
        """For a server with this status, which may serve what the learner it names never published.

        Args:
            published: digest of what this learner published as the version served.

        Raises:
        PushFailed: the server serves a later version of this learner, as it was published.
        """
        as_ours = status.learner_epoch == self.manifest.learner_epoch and status.digest != self.digest
        if not as_ours or (status.version is not None and status.version < self.version):
            return self.manifest
        if status.version is not None and status.digest == published:
            raise PushFailed(f"version {self.version} is superseded: it serves {status.version}")
        return self.manifest.model_copy(update={"replaces": status.digest})

    @property
    def version(self) -> int:
        return self.manifest.version

    @property
    def identity(self) -> tuple[int, str, int]:
        """Version, digest and learner epoch: what a server that has taken the update reports."""
        return self.version, self.digest, self.manifest.learner_epoch


class Push:
    """Carries updates over HTTP. Its methods may be called from any thread."""

    def __init__(self, token: str, metrics: LearnerMetrics, digest_of: Callable[[int], str | None]) -> None:
        """
        Args:
            digest_of: of a version, if this learner has published it.
        """
        self._digest_of = digest_of
        self._metrics = metrics
        self._http = httpx.Client(
            headers={"Authorization": f"Bearer {token}"},
            timeout=CALL_SECONDS,
            limits=httpx.Limits(max_connections=None),  # a server that hangs keeps none from the others
        )

    def to(self, url: str, update: Update) -> None:
        """Bring the server at `url` to `update`, unless it is there already.

        Raises:
        PushFailed: it refused, did not answer, reports something else, or took too long.
        """
        deadline = time.monotonic() + CALL_SECONDS + sum(map(len, update.parts)) / LEAST_RATE
        base, phase = f"{url}/v1/weights/{update.version}", self._metrics.push_seconds
        try:
            status = WeightStatus.model_validate_json(self._call("GET", f"{url}/v1/weights"))
            if (status.version, status.digest, status.learner_epoch) == update.identity:
                return  # its last heartbeat was older than its last update
            published = None if status.version is None else self._digest_of(status.version)
            manifest = update.manifest_for(status, published)
            with phase.labels("open").time():
                self._call("POST", base, json=manifest.model_dump())
            for number, data in enumerate(update.parts):
                with phase.labels("send").time():
                    content, length = _in_time(data, deadline), {"Content-Length": str(len(data))}
                    self._call("PUT", f"{base}/parts/{number}", content=content, headers=length)
                self._metrics.push_bytes.inc(len(data))
            with phase.labels("commit").time():
                status = WeightStatus.model_validate_json(self._call("POST", f"{base}/commit"))
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise PushFailed(f"{type(error).__name__}: {error}") from error
        if (status.version, status.digest) != (update.version, update.digest):
            raise PushFailed(f"it reports version {status.version} after a push of {update.version}")
        self._metrics.pushes.labels("served").inc()

    def close(self) -> None:
        self._http.close()

    def _call(self, method: str, url: str, **arguments: Any) -> bytes:
        response = self._http.request(method, url, **arguments)
        if response.status_code >= 300:
            raise PushRefused(f"{method} {url} answered {response.status_code}: {response.text[:300]}")
        return response.content


def _in_time(data: bytes, deadline: float) -> Iterator[bytes]:
    """The data in pieces. httpx limits only the time of each, which a server that drips never exceeds."""
    view = memoryview(data)
    for start in range(0, len(view), _CHUNK_BYTES):
        if time.monotonic() > deadline:
            raise PushFailed(
                f"it took {start:,} of {len(view):,} bytes, more slowly than {LEAST_RATE:,} a second"
            )
        yield bytes(view[start : start + _CHUNK_BYTES])


def _dtype(tensor: Tensor) -> Any:
    return str(tensor.dtype).removeprefix("torch.")
