"""Sequence packing: the sequences of a micro-batch stand one behind the other in one row, without padding.

Positions start anew with each sequence, and attention runs within each by itself: no sequence sees another.

Shapes: `B` sequences, `S` tokens of the longest, `N` tokens of all, `H` heads, `D` numbers per head.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

ATTENTION = "packed"
"""The name under which transformers knows the attention of this file."""


class Packed(NamedTuple):
    """Sequences as one row."""

    input_ids: Tensor
    """[1, N]"""
    position_ids: Tensor
    """From 0 in each sequence. [1, N]"""
    bounds: Tensor
    """Where each sequence starts, and at last N. int32 [B + 1]"""
    lengths: list[int]
    """Tokens of each sequence, at least one."""

    def arguments(self) -> dict[str, Any]:
        """What a model is called with; it hands `packed` on to its attention."""
        ids = {"input_ids": self.input_ids, "position_ids": self.position_ids}
        return {**ids, "use_cache": False, "packed": self}


def pack(input_ids: Tensor, lengths: Tensor) -> Packed:
    """The first tokens of each row [B, S], as many as `lengths` says [B], none fewer than one."""
    lengths = lengths.clamp(min=1)
    positions = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
    real = positions < lengths[:, None]
    bounds = nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return Packed(input_ids[real][None], positions[real][None], bounds, lengths.tolist())


def check_packs(model: PreTrainedModel) -> None:
    """Make sure that a model leaves it to its attention alone which token sees which.

    Raises:
        ValueError: it has layers that carry a state from token to token, chunked attention, or an attention
            of its own, which would mix the sequences of a row; or it changes attention scores in a way that
            the attention of this file does not.
    """
    config = model.config.get_text_config()
    if getattr(config, "attn_logit_softcapping", None) is not None:
        raise ValueError(_changes_scores(model, "softcapped attention scores (attn_logit_softcapping)"))
    if any(name.rpartition(".")[2] == "sinks" for name, _ in model.named_parameters()):
        raise ValueError(_changes_scores(model, "attention sinks"))
    others = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if others or model._is_stateful or not model._supports_attention_backend:
        what = ", ".join(sorted(others)) or "no attention of transformers' common kind"
        raise ValueError(
            f"{type(model).__name__} has {what}, so its sequences cannot be trained side by side in one row: "
            "choose a model with full or sliding-window attention in all layers"
        )


def _changes_scores(model: nn.Module, what: str) -> str:
    return (
        f"{type(model).__name__} has {what}, which the learner's attention does not compute, so its "
        "log-probabilities would be wrong: choose a model without"
    )


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    packed: Packed | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each sequence. [B, H, S, D] to [B, S, H, D]

    If nothing is packed, every row of a batch is one sequence. `query` may have more heads than the others.

    Raises:
        ValueError: the model asks for changed attention scores, in a way that `check_packs` does not know.
    """
    asked = {"softcap": softcap, "s_aux": s_aux, "position_bias": position_bias}
    if changes := [name for name, value in asked.items() if value is not None]:
        raise ValueError(_changes_scores(module, ", ".join(changes)))
    if packed and value.is_cuda and value.dtype == torch.bfloat16:  # flash takes no float32
        q, k, v = (tensor[0].transpose(0, 1).to(value.dtype) for tensor in (query, key, value))
        at, most = packed.bounds, max(packed.lengths)
        window = (-1 if sliding_window is None else sliding_window - 1, 0)
        output = varlen_attn(q, k, v, at, at, most, most, scale=scaling, window_size=window, enable_gqa=True)
        assert isinstance(output, Tensor), "a pair only where asked for"
        return output[None], None
    if value.device.type == "cpu":  # where the backward pass of attention in bfloat16 is twice as slow
        query, key, value = query.float(), key.float(), value.float()
    lengths = packed.lengths if packed else [query.shape[2]]
    gqa = query.shape[1] != key.shape[1]
    outputs = []
    with torch.autocast("cpu", enabled=False):
        for q, k, v in zip(*(x.split(lengths, dim=2) for x in (query, key, value)), strict=True):
            near = _window(q.shape[2], sliding_window, q.device)
            output = scaled_dot_product_attention(
                q, k, v, attn_mask=near, is_causal=near is None, scale=scaling, enable_gqa=gqa
            )
            outputs.append(output.transpose(1, 2))
    return torch.cat(outputs, dim=1), None


def _window(length: int, size: int | None, device: torch.device) -> Tensor | None:
    """True where a token sees another, itself included; None where it sees all before it. [S, S]"""
    if size is None or length <= size:
        return None
    return torch.ones(length, length, dtype=torch.bool, device=device).tril().triu(1 - size)


def _no_mask(*_: Any, attention_mask: Tensor | None = None, **__: Any) -> None:
    """Lengths say what a mask would; over a whole row it would have N x N entries."""
    assert attention_mask is None or attention_mask.all(), "packed sequences have no padding to mask"


AttentionInterface.register(ATTENTION, _attention)
AttentionMaskInterface.register(ATTENTION, _no_mask)
