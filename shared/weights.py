"""The weight contract between the learner and a rollout server: manifest, status, digests. No tensors.

An update is opened with a `WeightManifest` (`POST /v1/weights/{version}`), filled with safetensors parts
(`PUT /v1/weights/{version}/parts/{i}`), and applied whole or not at all
(`POST /v1/weights/{version}/commit`). `GET /v1/weights` answers with a `WeightStatus`.
"""

import hashlib
from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Element types a weight may have on the wire, with their size in bytes."""


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TensorInfo(_Message):
    """One tensor of an update, by its Hugging Face name."""

    name: str
    dtype: Literal["float32", "bfloat16", "float16"]
    shape: list[int]
    part: int = Field(ge=0)
    """Index of the part that carries it."""

    @property
    def nbytes(self) -> int:
        size = DTYPES[self.dtype]
        for extent in self.shape:
            size *= extent
        return size


class PartInfo(_Message):
    """One safetensors file of an update."""

    nbytes: int = Field(gt=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class WeightManifest(_Message):
    """What an update will bring. `base_version` None means a full update, which needs no base."""

    version: int = Field(ge=0)
    base_version: int | None = None
    learner_epoch: int = Field(ge=0)
    """Fencing number, raised at each learner start: a server refuses a lower one than it has seen."""
    replaces: str | None = None
    """Digest of what the server serves, if that is not what this learner published as that version. Only such
    an update may have a version that is not above the one served."""
    tokenizer: str | None = None
    """`vocabulary_digest` of the learner's model: a server by whose tokens other texts are meant refuses."""
    tensors: list[TensorInfo] = Field(min_length=1)
    parts: list[PartInfo] = Field(min_length=1)

    @model_validator(mode="after")
    def _is_consistent(self) -> "WeightManifest":
        names = [tensor.name for tensor in self.tensors]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"tensor {twice!r} is listed twice")
        if any(extent < 0 for tensor in self.tensors for extent in tensor.shape):
            raise ValueError("a tensor has a negative extent")
        used = {tensor.part for tensor in self.tensors}
        if used != set(range(len(self.parts))):
            raise ValueError(f"tensors name the parts {sorted(used)}, but there are {len(self.parts)} parts")
        return self

    @property
    def digest(self) -> str:
        """Digest of the whole update: of its tensor list and of its parts' digests."""
        lines = [f"{t.name} {t.dtype} {t.shape} {t.part}" for t in self.tensors]
        lines += [f"{part.nbytes} {part.sha256}" for part in self.parts]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


class WeightStatus(_Message):
    """What a rollout server serves now."""

    version: int | None
    """None until the learner has confirmed a version."""
    digest: str | None
    learner_epoch: int | None
    state: Literal["waiting", "serving", "receiving", "applying", "broken", "diverged"]
    """`waiting`: no version yet. `receiving`: serving while an update arrives. `broken`: an update failed
    after it had touched the model, so nothing is served and the process ends. `diverged`: the learner
    says that what is served is not the version it is taken for; nothing is, until the right one has come."""
    receiving_version: int | None = None


def sha256(chunks: Iterable[bytes | memoryview]) -> str:
    """Hexadecimal SHA-256 of the concatenated chunks."""
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()
