"""The clipped losses of PPO (Schulman et al. 2017) and their variants, and the supervised loss beside them.

All return sums over tokens, never means: the caller divides by a token count taken over the whole minibatch,
on all ranks, so that any split into micro-batches or ranks gives the same gradient.

Shapes: `B` completions, `T` completion tokens.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class PolicyLoss(NamedTuple):
    """Scalars summed over the masked tokens; only `loss` carries a gradient."""

    loss: Tensor
    clipped: Tensor
    """Tokens whose clipped loss is the larger one, so that they give no gradient."""
    approx_kl: Tensor
    """Half the squared log-ratio (the k2 estimate of the distance moved since the old policy)."""
    ratio: Tensor
    max_ratio: Tensor
    """The largest ratio, not a sum; 0 without a masked token."""


class ValueLoss(NamedTuple):
    """Scalars summed over the masked tokens; only `loss` carries a gradient."""

    loss: Tensor
    clipped: Tensor
    """Tokens whose clipped loss is the larger one."""


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    clip_low: float,
    clip_high: float,
    weights: Tensor | None = None,
    *,
    dual_clip: float | None = None,
    ratio_clamp: float | None = None,
    sequence_ratio: bool = False,
) -> PolicyLoss:
    """Clipped surrogate loss, summed: `max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high))` (eq. 7).

    Args:
        logprobs: log-probability of each token under the policy being trained. [B, T]
        old_logprobs: the same under the policy at the start of the update. [B, T]
        advantages: [B, T]
        mask: true on the tokens of the completion. [B, T]
        weights: factor on each token's loss: importance weights, or `1 / length` for a mean over each
            sequence. [B, T]
        dual_clip: above 1, the loss of a token of negative advantage is at most `-A dual_clip`, so that a
            token that has become much likelier cannot dominate (Ye et al. 2020, eq. 5).
        ratio_clamp: the ratio is cut here before all else and gives no gradient beyond (ColossalChat's 10).
        sequence_ratio: one ratio for the completion, `exp` of its mean log-ratio, on each of its tokens
            (Zheng et al. 2025, "GSPO", eq. 7).
    """
    log_ratio = torch.where(mask, logprobs - old_logprobs, 0.0)
    token_ratio = log_ratio.exp()
    ratio = token_ratio
    if sequence_ratio:
        length = mask.sum(dim=1, keepdim=True).clamp(min=1)
        ratio = (log_ratio.sum(dim=1, keepdim=True) / length).exp().expand_as(log_ratio)
    if ratio_clamp is not None:
        ratio = ratio.clamp(max=ratio_clamp)
    free = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    per_token = torch.maximum(free, clipped)
    if dual_clip is not None:
        per_token = torch.where(advantages < 0, torch.minimum(per_token, -advantages * dual_clip), per_token)
    if weights is not None:
        per_token = per_token * weights
    masked_ratio = torch.where(mask, token_ratio, 0.0).detach()
    return PolicyLoss(
        loss=torch.where(mask, per_token, 0.0).sum(),
        clipped=((clipped > free) & mask).sum(),
        approx_kl=log_ratio.detach().square().sum() / 2,
        ratio=masked_ratio.sum(),
        max_ratio=masked_ratio.amax() if masked_ratio.numel() else masked_ratio.sum(),
    )


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, value_clip: float | None
) -> ValueLoss:
    """Clipped squared error, summed: `max((V - R)^2, (V_old + clip(V - V_old, ±value_clip) - R)^2) / 2`.

    Without `value_clip` it is half the squared error.

    Args:
        values: value of the state before each token, from the critic being trained. [B, T]
        old_values: the same at the start of the update. [B, T]
        returns: target, the advantages (not whitened) plus the old values. [B, T]
        mask: true on the tokens of the completion. [B, T]
    """
    free = clipped = (values - returns).square()
    if value_clip is not None:
        clipped = (old_values + (values - old_values).clamp(-value_clip, value_clip) - returns).square()
    return ValueLoss(
        loss=torch.where(mask, torch.maximum(free, clipped), 0.0).sum() / 2,
        clipped=((clipped > free) & mask).sum(),
    )


def sequence_mean_weights(mask: Tensor, tokens: int, sequences: int) -> Tensor:
    """Factors that turn a sum over tokens, divided by `tokens`, into a mean over sequences of their means.

    Args:
        tokens, sequences: of the whole minibatch, on all ranks; sequences are those with a token.
    """
    length = mask.sum(dim=1, keepdim=True).clamp(min=1)
    return (tokens / (sequences * length)).expand(mask.shape)
