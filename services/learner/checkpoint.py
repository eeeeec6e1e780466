"""Durable checkpoints: policy and critic as Hugging Face folders, what resumes them and the loop beside them.

A checkpoint is written under a temporary name, flushed to disk, and renamed last, so a folder with the final
name is whole. The temporary name has the learner's epoch: one that was replaced may still be writing, and
leaves its successor's folder alone.
`vllm serve <run>/checkpoints/step-000100/policy` loads the policy.
"""

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from services.learner.models.snapshot import Snapshot

_MANIFEST = "manifest.json"
_PARTIAL = re.compile(r"\.step-\d+-of-(?P<epoch>\d+)\.partial")
log = logging.getLogger("rollstream.checkpoint")


def save(
    folder: Path,
    step: int,
    *,
    models: Snapshot,
    tokenizer: PreTrainedTokenizerBase,
    loop_state: Mapping[str, Any],
    learner_epoch: int,
    keep: int,
) -> Path:
    """Write the checkpoint of `step`, durably, and remove all but the newest `keep`. Rank 0 only.

    Raises:
    ValueError: it cannot be written; those before it are as they were.
    """
    final = folder / f"step-{step:06d}"
    for abandoned in folder.glob(".step-*.partial"):
        writer = _PARTIAL.fullmatch(abandoned.name)
        if writer and int(writer["epoch"]) <= learner_epoch:
            shutil.rmtree(abandoned, ignore_errors=True)
    partial = folder / f".step-{step:06d}-of-{learner_epoch}.partial"
    try:
        partial.mkdir(parents=True)
        models.write(partial)
        tokenizer.save_pretrained(partial / "policy")
        _seal(partial, step, loop_state)
        if final.exists():
            shutil.rmtree(final)
        partial.rename(final)
        _flush(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise ValueError(
            f"the checkpoint of step {step} cannot be written to {folder}: {error}. Make room, and go on "
            "from the one before it with --resume"
        ) from error
    for old in sorted(folder.glob("step-*"))[:-keep]:
        shutil.rmtree(old)
    return final


def _seal(partial: Path, step: int, loop_state: Mapping[str, Any]) -> None:
    """Write the manifest of what is there, and flush all of it to disk."""
    files = [path for path in sorted(partial.rglob("*")) if path.is_file()]
    manifest = {
        "step": step,
        "loop": dict(loop_state),
        "files": {str(path.relative_to(partial)): _digest(path) for path in files},
    }
    (partial / _MANIFEST).write_text(json.dumps(manifest, indent=1))
    for path in [*partial.rglob("*"), partial]:
        _flush(path)


def newest(folder: Path) -> Path | None:
    """The newest whole checkpoint: every file of its manifest is there with its digest."""
    for path in sorted(folder.glob("step-*"), reverse=True):
        if _is_whole(path):
            return path
        log.warning("%s is not whole: left alone", path)
    return None


def _is_whole(path: Path) -> bool:
    try:
        files = json.loads((path / _MANIFEST).read_bytes())["files"].items()
        return all(_digest(path / name) == digest for name, digest in files)
    except (OSError, ValueError, KeyError):  # cut off, or a file is missing
        return False


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
