"""The two clipped losses of PPO (Schulman et al. 2017).

Both return sums over tokens, never means: the caller divides by a token count taken over the whole minibatch,
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
) -> PolicyLoss:
    """Clipped surrogate loss, summed: `max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high))` (eq. 7).

    Args:
        logprobs: log-probability of each token under the policy being trained. [B, T]
        old_logprobs: the same under the policy at the start of the update. [B, T]
        advantages: [B, T]
        mask: true on the tokens of the completion. [B, T]
        weights: factor on each token's loss: importance weights, or `1 / length` for a mean over each
            sequence. [B, T]
    """
    log_ratio = torch.where(mask, logprobs - old_logprobs, 0.0)
    ratio = log_ratio.exp()
    free = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    per_token = torch.maximum(free, clipped)
    if weights is not None:
        per_token = per_token * weights
    masked_ratio = torch.where(mask, ratio, 0.0).detach()
    return PolicyLoss(
        loss=torch.where(mask, per_token, 0.0).sum(),
        clipped=((clipped > free) & mask).sum(),
        approx_kl=log_ratio.detach().square().sum() / 2,
        ratio=masked_ratio.sum(),
        max_ratio=masked_ratio.amax() if masked_ratio.numel() else masked_ratio.sum(),
    )


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, value_clip: float
) -> ValueLoss:
    """Clipped squared error, summed: `max((V - R)^2, (V_old + clip(V - V_old, ±value_clip) - R)^2) / 2`.

    Args:
        values: value of the state before each token, from the critic being trained. [B, T]
        old_values: the same at the start of the update. [B, T]
        returns: target, the advantages (not whitened) plus the old values. [B, T]
        mask: true on the tokens of the completion. [B, T]
    """
    near = old_values + (values - old_values).clamp(-value_clip, value_clip)
    free, clipped = (values - returns).square(), (near - returns).square()
    return ValueLoss(
        loss=torch.where(mask, torch.maximum(free, clipped), 0.0).sum() / 2,
        clipped=((clipped > free) & mask).sum(),
    )
