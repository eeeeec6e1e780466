"""Receives weight updates into shared memory while generation goes on, and swaps them in whole.

At most one update is open; a newer one takes its place. The files of the version being served are kept
until the next one has taken over: they are what a failed swap falls back to.
"""

import asyncio
import hashlib
import logging
import shutil
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from services.rollout.engine import Engine, ModelBroken
from services.rollout.metrics import RolloutMetrics
from services.rollout.weight_files import BadUpdate, ModelShape, check_part, part_limits
from services.rollout.weight_folder import WeightFolder
from shared.weights import WeightManifest, WeightStatus

_WRITE_BYTES = 4 << 20
log = logging.getLogger("rollstream")


class Conflict(ValueError):
    """The update does not follow from what is served here (409)."""


class TooLarge(ValueError):
    """More bytes than an update of this model can have, or than there is room for (413)."""


@dataclass
class Update:
    """A weight update: its manifest, and the parts that have arrived."""

    manifest: WeightManifest
    folder: Path
    received: set[int] = field(default_factory=set)

    @property
    def version(self) -> int:
        return self.manifest.version

    def path(self, part: int) -> Path:
        return self.folder / f"{part}.safetensors"

    @property
    def files(self) -> list[Path]:
        return [self.path(part) for part in range(len(self.manifest.parts))]

    def discard(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class WeightStore:
    """The one owner of which weights this server serves."""

    def __init__(
        self, engine: Engine, model: ModelShape, folder: WeightFolder, metrics: RolloutMetrics
    ) -> None:
        self._engine = engine
        self._metrics = metrics
        self._model = model
        self._folder = folder
        self._served: Update | None = None
        self._open: Update | None = None
        self._applying: Update | None = None
        self.broken = False
        """Whether the engine is of no use any more; see `ModelBroken`."""
        self._diverged = False
        self.divergences = 0
        """How often the learner said that what was served was not what it had published."""
        self._epoch: int | None = None
        self._one_at_a_time = asyncio.Lock()
        self._changed = asyncio.Condition()
        self._digests: dict[int, str] = {}

    @property
    def version(self) -> int | None:
        """The version served. None until the learner has confirmed one, when the model is broken, and when it
        is not what the learner published as that version."""
        return self._served.version if self._served and not self._diverged else None

    @property
    def status(self) -> WeightStatus:
        arriving = self._applying or self._open
        return WeightStatus(
            version=self.version,
            digest=self._served.manifest.digest if self._served else None,
            learner_epoch=self._served.manifest.learner_epoch if self._served else None,
            state=self._state,
            receiving_version=arriving.version if arriving else None,
        )

    @property
    def _state(self) -> Literal["waiting", "serving", "receiving", "applying", "broken", "diverged"]:
        if self._applying:
            return "applying"
        if self.broken:
            return "broken"
        if self._diverged:
            return "diverged"
        if self._open:
            return "receiving"
        return "serving" if self._served else "waiting"

    def digest(self, version: int) -> str:
        """Digest of a version that was served here."""
        return self._digests[version]

    async def wait_for(self, version: int) -> None:
        """Return once `version` or a later one is served."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.version is not None and self.version >= version)

    async def wait_for_update(self, known: WeightManifest | None) -> WeightManifest:
        """The manifest of what is served, once it is another than `known`."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._served and self._served.manifest is not known)
        assert self._served is not None
        return self._served.manifest

    async def open(self, manifest: WeightManifest) -> None:
        """Begin an update; an unfinished one is abandoned.

        Raises:
        Conflict: an older learner's, a version already superseded, or a delta on another base.
        BadUpdate: names or shapes are not the model's.
        TooLarge: a part is larger than its tensors need, or there is no room.
        """
        async with self._one_at_a_time:
            self._check_order(manifest)
            self._model.check(manifest)
            for number, (part, limit) in enumerate(zip(manifest.parts, part_limits(manifest), strict=True)):
                if part.nbytes > limit:
                    raise TooLarge(f"part {number} has {part.nbytes} bytes, its tensors need {limit} at most")
            if self._open:
                self._open.discard()
                self._open = None
            needed = sum(part.nbytes for part in manifest.parts)
            if needed > self._folder.free:
                raise TooLarge(
                    f"the update has {needed} bytes, but {self._folder.path.parent} has room for "
                    f"{self._folder.free}; enlarge it or set [rollout] weights_dir"
                )
            self._open = Update(manifest, self._folder.make(f"v{manifest.version}"))
            self._epoch = manifest.learner_epoch
            if self._contradicts(manifest) and not self._diverged:
                log.error("what is served as version %s is not what the learner published", self.version)
                self._diverged = True  # nothing is served from here on, until the update is
                self.divergences += 1
                self._metrics.divergences.inc()

    def _contradicts(self, manifest: WeightManifest) -> bool:
        """Whether the learner that is said to have published what is served denies it."""
        if self._served is None or manifest.replaces is None:
            return False
        served = self._served.manifest
        return (served.learner_epoch, served.digest) == (manifest.learner_epoch, manifest.replaces)

    def _check_order(self, manifest: WeightManifest) -> None:
        if self._epoch is not None and manifest.learner_epoch < self._epoch:
            raise Conflict(
                f"learner epoch {manifest.learner_epoch} is over: epoch {self._epoch} has taken the run"
            )
        if manifest.base_version is not None:
            if manifest.base_version != self.version:
                raise Conflict(f"base version {manifest.base_version} is not served here, {self.version} is")
            raise BadUpdate("this server takes full updates only; leave base_version out")
        served = self._served
        same_learner = served is not None and served.manifest.learner_epoch == manifest.learner_epoch
        repairs = self._contradicts(manifest)
        if served and same_learner and manifest.version <= served.version and not repairs:
            raise Conflict(f"version {manifest.version} is superseded: {served.version} is served")

    async def receive(self, version: int, part: int, chunks: AsyncIterator[bytes]) -> None:
        """Store one part, checked against its announced length, digest and tensor list.

        Raises:
        Conflict: `version` is not open, or was replaced meanwhile.
        TooLarge: more bytes than announced.
        BadUpdate: other bytes than announced.
        """
        update = self._opened(version)
        if part >= len(update.manifest.parts):
            raise BadUpdate(f"there is no part {part}, the manifest has {len(update.manifest.parts)}")
        incoming = update.folder / f"{part}-{uuid.uuid4().hex}.incoming"
        try:
            with self._metrics.weight_seconds.labels("receive").time():
                await _store(incoming, update.manifest, part, chunks)
            if self._open is not update:
                raise Conflict(f"update {version} was abandoned while part {part} arrived")
            incoming.rename(update.path(part))
        finally:
            incoming.unlink(missing_ok=True)
        update.received.add(part)
        self._metrics.weight_bytes.inc(update.manifest.parts[part].nbytes)

    async def commit(self, version: int) -> None:
        """Swap the open update in. Repeating it after success changes nothing.

        Raises:
        Conflict: `version` is neither open nor served.
        BadUpdate: parts are missing.
        UpdateFailed, ModelBroken, EngineDead: as the engine says.
        """
        async with self._one_at_a_time:
            if self._open is None and self.version == version:
                return
            update = self._opened(version)
            missing = sorted(set(range(len(update.manifest.parts))) - update.received)
            if missing:
                raise BadUpdate(f"update {version} lacks the parts {missing[:10]}")
            self._open, self._applying = None, update
            try:
                await self._swap(update)
            finally:
                self._applying = None
        async with self._changed:
            self._changed.notify_all()

    async def _swap(self, update: Update) -> None:
        previous = self._served
        self._digests[update.version] = update.manifest.digest
        try:
            with self._metrics.weight_seconds.labels("apply").time():
                await self._engine.replace_weights(
                    update.files, update.version, previous.files if previous else self._model.files
                )
        except BaseException as error:
            self._metrics.weight_updates.labels("failed").inc()
            update.discard()
            if isinstance(error, ModelBroken):
                self.broken, self._served = True, None
            raise
        self._metrics.weight_updates.labels("served").inc()
        self._served, self.broken, self._diverged = update, False, False
        if previous:
            previous.discard()

    def close(self) -> None:
        """Free the shared memory."""
        self._folder.close()

    def abandon(self, version: int) -> None:
        """Drop an open update.

        Raises:
        Conflict: `version` is not open.
        """
        self._opened(version).discard()
        self._open = None

    def _opened(self, version: int) -> Update:
        if self._open is None or self._open.version != version:
            being = f"version {self._open.version} is" if self._open else "none is"
            raise Conflict(f"no update to version {version} is open here ({being})")
        return self._open


async def _store(path: Path, manifest: WeightManifest, part: int, chunks: AsyncIterator[bytes]) -> None:
    info, digest, length, buffer = manifest.parts[part], hashlib.sha256(), 0, bytearray()

    def flush(file: Any) -> None:
        digest.update(buffer)
        file.write(buffer)

    with path.open("wb") as file:
        async for chunk in chunks:
            length += len(chunk)
            if length > info.nbytes:
                raise TooLarge(f"part {part} has more than the announced {info.nbytes} bytes")
            buffer += chunk
            if len(buffer) >= _WRITE_BYTES:
                await asyncio.to_thread(flush, file)
                buffer.clear()
        flush(file)
    if length < info.nbytes:
        raise BadUpdate(f"part {part} has {length} bytes, announced were {info.nbytes}")
    if digest.hexdigest() != info.sha256:
        raise BadUpdate(f"part {part} has the sha256 {digest.hexdigest()}, announced was {info.sha256}")
    check_part(path, manifest, part)
