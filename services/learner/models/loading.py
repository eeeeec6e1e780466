"""How every model of the learner is read from its folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from services.learner.models.packing import ATTENTION

LOADING: dict[str, Any] = {
    "dtype": torch.float32,  # master weights; the precision of a forward pass is autocast's business
    "attn_implementation": ATTENTION,
    "trust_remote_code": False,
    "use_safetensors": True,  # a .bin file is a pickle
}


@contextmanager
def reading(path: str | Path, what: str) -> Iterator[None]:
    """Turn the errors of reading a model folder into one sentence.

    Raises:
        ValueError: names the folder, what was looked for, the cause, and the remedy for adapters and pickles.
    """
    if not Path(path).is_dir():
        raise ValueError(f"{path} is not a folder: give a local one with {what}")
    if (Path(path) / "adapter_config.json").is_file():
        raise ValueError(
            f"{path} holds an adapter where {what} is expected: give its base model there, and the adapter "
            "in learner.lora.adapters or learner.critic_lora.adapters"
        )
    try:
        yield
    except (OSError, ValueError, SafetensorError) as error:
        remedy = ""
        if any(Path(path).glob("*.bin")) and not any(Path(path).glob("*.safetensors")):
            remedy = (
                "; .bin files are pickles and are never loaded, convert them where you trust them, with all "
                "their tensors: save_file({k: v.clone() for f in glob('pytorch_model*.bin') for k, v in "
                "torch.load(f, weights_only=True).items()}, 'model.safetensors', metadata={'format': 'pt'})"
            )
        raise ValueError(f"{path} cannot be loaded as {what}: {error}{remedy}") from error
