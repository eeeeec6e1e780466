"""Durable checkpoints: policy and critic as Hugging Face folders, what resumes them and the loop beside them.

A checkpoint is written under a temporary name, flushed to disk, and renamed last, so a folder with the final
name is whole. `vllm serve <run>/checkpoints/step-000100/policy` loads the policy.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from services.learner.models.snapshot import Snapshot

_MANIFEST = "manifest.json"


def save(
    folder: Path,
    step: int,
    *,
    models: Snapshot,
    tokenizer: PreTrainedTokenizerBase,
    loop_state: Mapping[str, Any],
    keep: int,
) -> Path:
    """Write the checkpoint of `step`, durably, and remove all but the newest `keep`. Rank 0 only."""
    final = folder / f"step-{step:06d}"
    partial = folder / f".step-{step:06d}.partial"
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir(parents=True)
    models.write(partial)
    tokenizer.save_pretrained(partial / "policy")
    files = [path for path in sorted(partial.rglob("*")) if path.is_file()]
    manifest = {
        "step": step,
        "loop": dict(loop_state),
        "files": {str(path.relative_to(partial)): _digest(path) for path in files},
    }
    (partial / _MANIFEST).write_text(json.dumps(manifest, indent=1))
    for path in [*partial.rglob("*"), partial]:
        _flush(path)
    if final.exists():
        shutil.rmtree(final)
    partial.rename(final)
    _flush(folder)
    for old in sorted(folder.glob("step-*"))[:-keep]:
        shutil.rmtree(old)
    return final


def newest(folder: Path) -> Path | None:
    """The newest whole checkpoint: every file of its manifest is there with its digest."""
    for path in sorted(folder.glob("step-*"), reverse=True):
        manifest = path / _MANIFEST
        if manifest.is_file() and all(
            (path / name).is_file() and _digest(path / name) == digest
            for name, digest in json.loads(manifest.read_text())["files"].items()
        ):
            return path
    return None


def load_loop_state(path: Path) -> dict[str, Any]:
    """What `save` was given as `loop_state`."""
    state: dict[str, Any] = json.loads((path / _MANIFEST).read_text())["loop"]
    return state


def load_optimizer_state(path: Path, name: str) -> dict[str, Tensor]:
    return load_file(path / f"{name}_optimizer.safetensors")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
