"""Model folders: what may be read from them, and the tensors of safetensors files."""

import json
from collections.abc import Callable
from pathlib import Path

from safetensors import safe_open
from torch import Tensor


def check_folder(folder: Path, weights: str = "*.safetensors", described_by: str = "config.json") -> None:
    """Raises:
    ValueError: no folder, no description, or no weights but such as can run code when they are read.
    """
    if not (folder / described_by).is_file():
        raise ValueError(f"{folder} is no model folder: it has no {described_by}; name a local folder")
    if any(folder.glob(weights)):
        return
    pickled = sorted(path.name for kind in ("*.bin", "*.pt", "*.pth") for path in folder.glob(kind))
    if pickled:
        raise ValueError(
            f"{folder} holds its weights as {pickled[0]}, a format that can run code when it is read. "
            "Convert them once where that does no harm: load the model and call save_pretrained(FOLDER), "
            "which writes safetensors"
        )
    raise ValueError(f"{folder} holds no weights: {weights} is missing")


def read_tensors(folder: Path, wanted: Callable[[str], bool]) -> dict[str, Tensor]:
    """The tensors of all safetensors files of `folder` whose names are wanted."""
    tensors: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            tensors |= {name: file.get_tensor(name) for name in file.keys() if wanted(name)}  # noqa: SIM118
    return tensors


def adapter_names(folder: Path) -> list[str]:
    """The names of an adapter's tensors.

    Raises:
    ValueError: it is no LoRA adapter in safetensors.
    """
    check_folder(folder, "adapter_model.safetensors", "adapter_config.json")
    kind = json.loads((folder / "adapter_config.json").read_text()).get("peft_type")
    if kind != "LORA":
        raise ValueError(f"{folder} is an adapter of type {kind}; only LORA is known")
    with safe_open(folder / "adapter_model.safetensors", framework="pt") as file:
        return list(file.keys())
