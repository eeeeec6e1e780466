"""Sequence packing: many sequences as one row, none of which sees another.

Positions start anew with each sequence, and attention runs for each by itself (`varlen`), or over the whole
row with a block-diagonal causal mask (`block`). No token is padding. The learner itself uses micro-batches of
like length; this is a contender in the benchmark.

Shapes: `S` tokens of the row, `N` completion tokens in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from services.learner.data.batch import ExperienceBatch

Attention = Literal["varlen", "block"]


@dataclass(frozen=True)
class Packed:
    """Some rows of a batch as one."""

    input_ids: Tensor
    """[1, S]"""
    position_ids: Tensor
    """[1, S]"""
    lengths: list[int]
    """Of the sequences, in order; they add up to S."""
    states: Tensor
    """Position in the row of the state before each completion token. [N]"""
    tokens: Tensor
    """The completion tokens. [N]"""


def pack(batch: ExperienceBatch, rows: Sequence[int]) -> Packed:
    """These rows of a batch, each without its last token, which predicts nothing."""
    ids, positions, states, tokens, lengths = [], [], [], [], []
    start = 0
    device = batch.input_ids.device
    for row in rows:
        prompt, length = int(batch.prompt_lengths[row]), int(batch.lengths[row])
        inputs = batch.input_ids[row, : length - 1]
        ids.append(inputs)
        positions.append(torch.arange(length - 1, device=device))
        states.append(start + torch.arange(prompt - 1, length - 1, device=device))
        tokens.append(batch.input_ids[row, prompt:length])
        lengths.append(length - 1)
        start += length - 1
    return Packed(
        torch.cat(ids)[None], torch.cat(positions)[None], lengths, torch.cat(states), torch.cat(tokens)
    )


def bins(lengths: Sequence[int], rows: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Deal rows to as few passes of at most `max_tokens` as first-fit decreasing finds; a longer row has one
    to itself."""
    passes: list[tuple[int, list[int]]] = []
    for row in sorted(rows, key=lambda row: -lengths[row]):
        for index, (filled, members) in enumerate(passes):
            if filled + lengths[row] <= max_tokens:
                passes[index] = (filled + lengths[row], [*members, row])
                break
        else:
            passes.append((lengths[row], [row]))
    return [members for _, members in passes]


def packed_logits(policy: PreTrainedModel, packed: Packed, attention: Attention) -> Tensor:
    """Logits where the completion tokens were drawn. [N, V]"""
    before = policy.config._attn_implementation
    if attention == "varlen":
        policy.set_attn_implementation("benchmark_varlen")
    try:
        # For `block`, transformers sees the positions start anew and makes the mask from that.
        hidden = policy.base_model(
            input_ids=packed.input_ids,
            position_ids=packed.position_ids,
            use_cache=False,
            sequence_lengths=packed.lengths,
        ).last_hidden_state
    finally:
        policy.set_attn_implementation(before)
    return policy.get_output_embeddings()(hidden[0, packed.states])


def _attend_by_sequence(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    sequence_lengths: list[int],
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each sequence; in float32 on CPU, as the learner's own."""
    on_cpu, gqa = query.device.type == "cpu", query.shape[1] != key.shape[1]
    if on_cpu:
        query, key, value = query.float(), key.float(), value.float()
    parts = zip(*(tensor.split(sequence_lengths, dim=2) for tensor in (query, key, value)), strict=True)
    with torch.autocast(query.device.type, enabled=False):
        outputs = [
            nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=gqa)
            for q, k, v in parts
        ]
    return torch.cat(outputs, dim=2).transpose(1, 2).contiguous(), None


AttentionInterface.register("benchmark_varlen", _attend_by_sequence)
AttentionMaskInterface.register("benchmark_varlen", lambda *args, **kwargs: None)
