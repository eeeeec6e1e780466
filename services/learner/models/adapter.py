"""Adapters as files in peft's format, and their tensors within a model.

A model's adapters are told apart by name. The one that learns is `default`; with a frozen one, `reference`,
the policy acts as its own reference.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

if TYPE_CHECKING:
    import peft

TRAINED, REFERENCE = "default", "reference"
_WEIGHTS = "adapter_model.safetensors"
_FILE_PREFIX = "base_model.model."  # files name tensors as peft's wrapper around the model does
_MORE_THAN_LORA = ("use_dora", "lora_bias", "modules_to_save", "target_parameters", "trainable_token_indices")


def import_peft() -> Any:
    """The package, which is slow to import and needed for LoRA alone.

    Raises:
        ValueError: it is not installed.
    """
    try:
        import peft
    except ImportError as error:
        raise ValueError(
            "LoRA needs the package peft, which is not installed: pip install 'rollstream[learner]', or "
            "remove [learner.lora] and [learner.critic_lora]"
        ) from error
    return peft


def belongs(name: str, adapter: str) -> bool:
    """Whether a parameter of this name is an adapter's."""
    return is_adapter_weight(name) and f".{adapter}." in name


def is_adapter_weight(name: str) -> bool:
    return ".lora_A." in name or ".lora_B." in name


def adapter_state(state: Mapping[str, Tensor], adapter: str) -> dict[str, Tensor]:
    """An adapter's tensors under the names that they have in a file, out of a model's full tensors."""
    return {
        name.replace(f".{adapter}.", "."): tensor for name, tensor in state.items() if belongs(name, adapter)
    }


def save_adapter(model: PreTrainedModel, state: Mapping[str, Tensor], folder: Path, adapter: str) -> None:
    """Write an adapter as peft does, for `PeftModel.from_pretrained` and vLLM.

    Args:
        model: gives the configuration.
        state: the model's full tensors by name.
    """
    configs: Any = model.peft_config
    configs[adapter].save_pretrained(str(folder))
    tensors = adapter_state(state, adapter)
    save_file({_FILE_PREFIX + k: v.contiguous() for k, v in tensors.items()}, folder / _WEIGHTS)


def read_adapter_config(folder: Path) -> "peft.LoraConfig":
    """That of an adapter on disk.

    Raises:
        ValueError: none there, or one that is more than A and B of linear layers.
    """
    peft = import_peft()
    if not (folder / "adapter_config.json").is_file():
        raise ValueError(f"{folder} holds no adapter in peft's format: it has no adapter_config.json")
    try:
        config = peft.PeftConfig.from_pretrained(str(folder))
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{folder} holds no adapter that this peft can read: {error}") from error
    plain = isinstance(config, peft.LoraConfig) and config.bias == "none"
    if not plain or any(getattr(config, option, None) for option in _MORE_THAN_LORA):
        raise ValueError(
            f"the adapter in {folder} is more than plain LoRA (A and B of linear layers): merge it with "
            "peft's merge_and_unload() and start from the merged model"
        )
    return config


@torch.no_grad()
def load_adapter(model: PreTrainedModel, folder: Path, adapter: str) -> None:
    """Give an adapter the weights of a folder. Before the model is sharded.

    An adapter of a causal model also fits its backbone alone.

    Raises:
        ValueError: no weights there, or those of other layers or another rank.
    """
    if not (folder / _WEIGHTS).is_file():
        remedy = "give a folder of peft's"
        if (folder / "adapter_model.bin").is_file():
            remedy = "adapter_model.bin is a pickle and never loaded: save it with safe_serialization=True"
        raise ValueError(f"{folder} has no {_WEIGHTS}; {remedy}")
    own = adapter_state(dict(model.named_parameters()), adapter)
    trunk = f"{model.base_model_prefix}."
    given: dict[str, Tensor] = {}
    for name, tensor in load_file(folder / _WEIGHTS).items():
        name = name.removeprefix(_FILE_PREFIX)
        near = (name, name.removeprefix(trunk), trunk + name)
        given[next((candidate for candidate in near if candidate in own), name)] = tensor
    if given.keys() != own.keys():
        raise ValueError(
            f"the adapter in {folder} does not fit the model, it differs in "
            f"{sorted(given.keys() ^ own.keys())[:5]}: use it with the model and targets it was trained with"
        )
    for name, parameter in own.items():
        if parameter.shape != given[name].shape:
            raise ValueError(
                f"the adapter in {folder} has {name} of shape {tuple(given[name].shape)}, expected "
                f"{tuple(parameter.shape)}: give the rank that it was trained with"
            )
        parameter.copy_(given[name])
