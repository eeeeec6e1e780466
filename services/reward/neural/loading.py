"""Reward models from their folders: the class that reads each architecture, and what may not be missing."""

from collections.abc import Collection
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from services.reward.neural.config import Architecture, NeuralConfig
from services.reward.neural.folder import adapter_names, read_tensors

_CLASSES: dict[Architecture, Any] = {
    "sequence_classification": AutoModelForSequenceClassification,
    "token_classification": AutoModelForTokenClassification,
    "causal_lm_steps": AutoModelForCausalLM,
    # Its adapters are trained on, and name their tensors after, the causal model.
    "llamafactory": AutoModelForCausalLM,
    "colossalchat": AutoModel,
}
_SAFE: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}


def auto_class(config: NeuralConfig) -> Any:
    """The transformers class that reads the scorer's base. Scorers with the same may share a base."""
    return _CLASSES[config.architecture]


def load_model(config: NeuralConfig, device: torch.device) -> tuple[PreTrainedModel, set[str]]:
    """The scorer's base in evaluation mode, and the names of the weights that its folder lacks.

    Raises:
    ValueError: several labels where one is wanted, or it cannot be loaded.
    """
    dtype = getattr(torch, config.dtype)
    try:
        if config.architecture == "colossalchat":
            model, missing = _load_colossalchat(config, dtype)
        else:
            labels = _labels(config)
            model, told = auto_class(config).from_pretrained(
                config.path, dtype=dtype, use_safetensors=True, output_loading_info=True, **_SAFE, **labels
            )
            missing = set(told["missing_keys"])
    except (OSError, RuntimeError) as error:
        raise ValueError(f"the model at {config.path} cannot be loaded: {error}") from error
    return _ready(model, device), missing


def _ready(model: nn.Module, device: torch.device) -> Any:
    return model.to(device).eval().requires_grad_(False)


def load_tokenizer(config: NeuralConfig) -> PreTrainedTokenizerBase:
    """Raises:
    ValueError: the folder has none.
    """
    try:
        return AutoTokenizer.from_pretrained(config.path, **_SAFE)
    except OSError as error:
        raise ValueError(f"the tokenizer at {config.path} cannot be loaded: {error}") from error


def check_complete(config: NeuralConfig, missing: Collection[str]) -> None:
    """Transformers fills a missing head with random numbers, and a random head gives scores like any other.

    Raises:
    ValueError: neither the model nor the scorer's adapter has some weight.
    """
    names = [] if config.adapter is None else adapter_names(config.adapter)
    lacking = sorted(weight for weight in missing if not any(name.endswith(f".{weight}") for name in names))
    if lacking:
        where = config.path if config.adapter is None else f"{config.path} and its adapter {config.adapter}"
        raise ValueError(
            f"{where} lack {', '.join(lacking[:3])}: this is no trained reward model of architecture "
            f"{config.architecture!r}. Name the folder of one, or its architecture"
        )


def _labels(config: NeuralConfig) -> dict[str, int]:
    """A base for adapters says nothing of labels; a reward model must have one."""
    if config.architecture != "sequence_classification":
        return {}
    if config.adapter is not None:
        return {"num_labels": 1}
    labels = AutoConfig.from_pretrained(config.path, **_SAFE).num_labels
    if labels != 1:
        raise ValueError(
            f"the model at {config.path} has {labels} labels; a reward model of architecture "
            "'sequence_classification' has 1 (num_labels in its config.json)"
        )
    return {}


def _load_colossalchat(config: NeuralConfig, dtype: torch.dtype) -> tuple[PreTrainedModel, set[str]]:
    """The backbone, whose tensors have the prefix `model.`; the head is read beside it.

    Source: ColossalChat, `coati/models/reward_model.py` and `base.py`.
    """
    settings = AutoConfig.from_pretrained(config.path, **_SAFE)
    model = AutoModel.from_config(settings, dtype=dtype, trust_remote_code=False)
    tensors = read_tensors(config.path, lambda name: name.startswith("model."))
    told = model.load_state_dict(
        {name.removeprefix("model."): tensor for name, tensor in tensors.items()}, strict=False
    )
    return model, set(told.missing_keys)
