"""From token rewards and values to advantages. Shapes: `B` completions, `T` completion tokens."""

import torch
from torch import Tensor


def generalized_advantages(
    rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, gae_lambda: float
) -> Tensor:
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16), zero outside the mask.

    `delta_t = r_t + gamma V_{t+1} - V_t` and `A_t = delta_t + gamma lambda A_{t+1}`. The value beyond the
    last true position is 0: a completion cut by its length limit ends there like one that stopped by
    itself. The target of the value function is `advantages + values`.

    Args:
        rewards: reward received for each token. [B, T]
        values: value of the state before each token. [B, T]
        mask: true on the tokens of the completion, contiguous from position 0. [B, T]
    """
    advantages = torch.zeros_like(values)
    next_value = torch.zeros_like(values[:, 0])
    next_advantage = torch.zeros_like(next_value)
    for t in reversed(range(values.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        next_advantage = torch.where(mask[:, t], delta + gamma * gae_lambda * next_advantage, 0.0)
        next_value = torch.where(mask[:, t], values[:, t], 0.0)
        advantages[:, t] = next_advantage
    return advantages


def whiten(values: Tensor, mask: Tensor, shift_mean: bool = True) -> Tensor:
    """Scale the masked entries to variance 1 and, with `shift_mean`, shift them to mean 0; others become 0.

    The variance is unbiased and taken over the masked entries only. Pass the whole batch, not one rank's
    share, so that every rank scales alike.

    Args:
        values: [B, T]
        mask: true on the entries that count. [B, T]
        shift_mean: false keeps the mean as it was.
    """
    selected = values[mask].double()
    if selected.numel() < 2:  # no variance to divide by
        return torch.where(mask, values, 0.0)
    mean, variance = selected.mean(), selected.var()
    whitened = (values - mean) * torch.rsqrt(variance + 1e-8)
    return torch.where(mask, whitened if shift_mean else whitened + mean, 0.0).to(values.dtype)
