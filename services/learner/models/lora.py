"""Low-rank adapters (LoRA, Hu et al. 2022) through peft: what learns, what is merged, and the reference.

An adapted layer computes `base(x) + scale * B(A(x))`.
"""

import logging
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from services.learner.config.models import LoraConfig
from services.learner.models.adapter import (
    REFERENCE,
    TRAINED,
    belongs,
    import_peft,
    is_adapter_weight,
    load_adapter,
    read_adapter_config,
)

if TYPE_CHECKING:
    import peft

log = logging.getLogger("rollstream.lora")


def attach_lora(model: PreTrainedModel, config: LoraConfig) -> None:
    """Merge the adapters to start from, freeze what there is, and add the adapter to train.

    Raises:
        ValueError: peft is missing, an adapter does not fit the model, or a target is no linear layer.
    """
    folders = list(config.adapters)
    start = None if config.new_adapter or not folders else folders.pop()
    for folder in folders:
        _inject(model, read_adapter_config(folder), TRAINED)
        load_adapter(model, folder, TRAINED)
        _merge_into_base(model)
    if start is None:
        new = _new_config(model, config)
        if not folders:  # else the base is no longer what lies in that folder
            new.base_model_name_or_path = model.name_or_path
        _inject(model, new, TRAINED)
    else:
        _inject(model, read_adapter_config(start), TRAINED)
        load_adapter(model, start, TRAINED)
        log.info("the adapter in %s is trained on, with its own rank and targets", start)
    for layer in _layers(model).values():
        layer.lora_dropout[TRAINED] = _TrainingDropout(config.dropout) if config.dropout else nn.Identity()


def has_lora(model: nn.Module) -> bool:
    return bool(getattr(model, "peft_config", None))


def keep_reference_adapter(model: PreTrainedModel) -> None:
    """Keep a frozen copy of the adapter as it is now, for the policy to act as its own reference with."""
    configs: Any = model.peft_config
    del model.peft_config  # peft warns of a second adapter, which is what is wanted here
    _inject(model, configs[TRAINED], REFERENCE)
    model.peft_config = configs | {REFERENCE: configs[TRAINED]}
    for layer in _layers(model).values():
        layer.lora_dropout[REFERENCE] = nn.Identity()
    refresh_reference_adapter(model)


@torch.no_grad()
def refresh_reference_adapter(model: PreTrainedModel) -> None:
    """Make the reference adapter, if there is one, equal to the trained one; of a sharded model each rank its
    part."""
    own = dict(model.named_parameters())
    for name, parameter in own.items():
        if belongs(name, REFERENCE):
            parameter.copy_(own[name.replace(f".{REFERENCE}.", f".{TRAINED}.")])


class AdapterReference:
    """The policy as its own reference: with the adapter it started from, or with none."""

    def __init__(self, policy: PreTrainedModel) -> None:
        self._policy = policy
        kept = any(belongs(name, REFERENCE) for name, _ in policy.named_parameters())
        self._active = [REFERENCE] if kept else []

    @contextmanager
    def acting(self) -> Iterator[PreTrainedModel]:
        """The policy, which is the reference while the context lasts."""
        layers = _layers(self._policy).values()
        try:
            for layer in layers:
                # peft's own switches turn gradients off and on with it, on whichever copy of a sharded
                # parameter is in place just then.
                layer._active_adapter = self._active
            yield self._policy
        finally:
            for layer in layers:
                layer._active_adapter = [TRAINED]


def merged_state(model: PreTrainedModel, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Full weights under the base model's names: `W + scale * B A` in float32 for every adapted layer.

    Args:
        model: gives the layers' scales; its own tensors may be sharded and are neither read nor changed.
        state: its full tensors by name, as `distributed.full_state` gathers them. Empty gives empty.
    """
    layers = _layers(model)
    merged = {}
    for name, tensor in state.items():
        if is_adapter_weight(name):
            continue
        owner, adapted, leaf = name.rpartition(".base_layer.")
        if adapted and leaf == "weight":
            tensor = tensor.float() + _delta(layers[owner], owner, state)
        merged[name.replace(".base_layer.", ".")] = tensor
    return merged


class _TrainingDropout(nn.Dropout):
    """Acts where gradients are taken; models stay in eval mode, and other passes say what the policy is."""

    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.dropout(input, self.p, training=torch.is_grad_enabled())


def _new_config(model: PreTrainedModel, config: LoraConfig) -> "peft.LoraConfig":
    targets, head = set(config.target_modules), model.get_output_embeddings()
    if targets == {"all-linear"}:
        targets = {name.rpartition(".")[2] for name, module in model.named_modules() if _is_linear(module)}
        targets -= {name for name, module in model.named_children() if module is head}
    return import_peft().LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        use_rslora=config.rslora,
        target_modules=sorted(targets),
        bias="none",
        task_type="CAUSAL_LM" if head is not None else None,
    )


def _inject(model: PreTrainedModel, config: "peft.LoraConfig", adapter: str) -> None:
    """Put an adapter's layers into a model, where `TRAINED` learns and all else is frozen."""
    if adapter == TRAINED:
        _check_targets(model, config.target_modules or ())
    config.fan_in_fan_out = any(isinstance(module, Conv1D) for module in model.modules())
    config.inference_mode = False
    try:
        import_peft().inject_adapter_in_model(config, model, adapter)
    except ValueError as error:
        raise ValueError(f"lora.target_modules do not fit {type(model).__name__}: {error}") from error
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(belongs(name, TRAINED))
    for layer in _layers(model).values():
        layer._active_adapter = [TRAINED]


def _check_targets(model: PreTrainedModel, targets: Collection[str] | str) -> None:
    for name, module in model.named_modules():
        found = (
            re.fullmatch(targets, name)
            if isinstance(targets, str)
            else any(f".{name}".endswith(f".{target}") for target in targets)
        )
        if found and (module is model.get_output_embeddings() or not _is_linear(module)):
            raise ValueError(
                f"lora.target_modules names {name}, a {type(module).__name__}: only linear layers, and not "
                "the output head, can be adapted"
            )


def _merge_into_base(model: PreTrainedModel) -> None:
    """Add the trained adapter to the base weights and take its layers out again."""
    for name, layer in _layers(model).items():
        layer.merge(adapter_names=[TRAINED])
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, layer.base_layer)
    del model.peft_config


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear | Conv1D)


def _layers(model: nn.Module) -> dict[str, Any]:
    """peft's layers by name."""
    return {name: module for name, module in model.named_modules() if hasattr(module, "base_layer")}


def _delta(layer: Any, name: str, state: Mapping[str, Tensor]) -> Tensor:
    a, b = (state[f"{name}.lora_{side}.{TRAINED}.weight"].float() for side in "AB")
    delta = (b @ a) * layer.scaling[TRAINED]
    return delta.T if isinstance(layer.base_layer, Conv1D) else delta
