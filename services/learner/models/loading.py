"""How every model of the learner is read from its folder, and the attention it uses."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

LOADING: dict[str, Any] = {
    "dtype": torch.float32,  # master weights; the precision of a forward pass is autocast's business
    "attn_implementation": "learner_sdpa",
    "trust_remote_code": False,
}


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Scaled dot-product attention, in float32 on CPU, where its bfloat16 backward is twice as slow."""
    if query.device.type != "cpu":
        return sdpa_attention_forward(module, query, key, value, mask, **kwargs)
    with torch.autocast("cpu", enabled=False):
        return sdpa_attention_forward(module, query.float(), key.float(), value.float(), mask, **kwargs)


AttentionInterface.register("learner_sdpa", _attention)
AttentionMaskInterface.register("learner_sdpa", sdpa_mask)
