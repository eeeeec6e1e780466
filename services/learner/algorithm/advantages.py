"""From token rewards and values to advantages. Shapes: `B` completions, `T` completion tokens.

`generalized_advantages` needs a critic. The estimators of `CRITIC_FREE` do without: most of them compare the
completions of one prompt with one another.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def generalized_advantages(
    rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    gamma: float,
    gae_lambda: float,
    final_values: Tensor | None = None,
) -> Tensor:
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16), zero outside the mask.

    `delta_t = r_t + gamma V_{t+1} - V_t` and `A_t = delta_t + gamma lambda A_{t+1}`. The target of the value
    function is `advantages + values`.

    Args:
        rewards: reward received for each token. [B, T]
        values: value of the state before each token. [B, T]
        mask: true on the tokens of the completion, contiguous from position 0. [B, T]
        final_values: value of the state after the last token, for completions that were cut and not ended
            (Pardo et al. 2018). None: 0 for all, a cut completion ends like one that stopped by itself. [B]
    """
    advantages = torch.zeros_like(values)
    final_value = torch.zeros_like(values[:, 0]) if final_values is None else final_values
    next_value, next_advantage = final_value, torch.zeros_like(final_value)
    for t in reversed(range(values.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        next_advantage = torch.where(mask[:, t], delta + gamma * gae_lambda * next_advantage, 0.0)
        next_value = torch.where(mask[:, t], values[:, t], final_value)
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


def returns_to_go(rewards: Tensor, mask: Tensor, gamma: float) -> Tensor:
    """What follows each token, discounted: `G_t = r_t + gamma G_{t+1}`, zero outside the mask. [B, T]"""
    return generalized_advantages(rewards, torch.zeros_like(rewards), mask, gamma, gae_lambda=1.0)


def grpo(rewards: Tensor, mask: Tensor, groups: Tensor, gamma: float) -> Tensor:
    """`(R - mean) / (std + 1e-4)` over the completions of a prompt, on each token (Shao et al. 2024, 4.1.2).

    `R` is the sum of a completion's rewards, the standard deviation is unbiased; `gamma` plays no part.
    """
    scores = _sums(rewards, mask)
    mean, count = _group_mean(scores, groups)
    squares = _group_mean((scores - mean).square(), groups)[0] * count
    std = (squares / (count - 1).clamp(min=1)).sqrt()
    return _on_each_token((scores - mean) / (std + 1e-4), rewards, mask)


def grpo_without_std(rewards: Tensor, mask: Tensor, groups: Tensor, gamma: float) -> Tensor:
    """`R - mean` over the completions of a prompt, on each token (Liu et al. 2025, "Dr. GRPO")."""
    scores = _sums(rewards, mask)
    return _on_each_token(scores - _group_mean(scores, groups)[0], rewards, mask)


def rloo(rewards: Tensor, mask: Tensor, groups: Tensor, gamma: float) -> Tensor:
    """`R` minus the mean of the prompt's other completions, on each token (Ahmadian et al. 2024, eq. 8)."""
    scores = _sums(rewards, mask)
    mean, count = _group_mean(scores, groups)
    return _on_each_token((scores - mean) * count / (count - 1).clamp(min=1), rewards, mask)


def reinforce_plus_plus(rewards: Tensor, mask: Tensor, groups: Tensor, gamma: float) -> Tensor:
    """Returns to go, to be whitened over the whole batch (Hu et al. 2025, "REINFORCE++", eq. 5 to 8)."""
    return returns_to_go(rewards, mask, gamma)


def reinforce_plus_plus_baseline(rewards: Tensor, mask: Tensor, groups: Tensor, gamma: float) -> Tensor:
    """`R - mean` over the completions of a prompt, to be whitened over the whole batch (Hu et al. 2025)."""
    return grpo_without_std(rewards, mask, groups, gamma)


CRITIC_FREE: dict[str, Callable[[Tensor, Tensor, Tensor, float], Tensor]] = {
    "grpo": grpo,
    "grpo_without_std": grpo_without_std,
    "rloo": rloo,
    "reinforce_plus_plus": reinforce_plus_plus,
    "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline,
}
"""Rewards [B, T], mask [B, T], index of each completion's prompt [B] and gamma to advantages [B, T]."""


def _sums(rewards: Tensor, mask: Tensor) -> Tensor:
    """In float64: the small divisor of `grpo` would turn rounding into an advantage. [B]"""
    return torch.where(mask, rewards, 0.0).double().sum(dim=1)


def _on_each_token(advantages: Tensor, rewards: Tensor, mask: Tensor) -> Tensor:
    """[B] to [B, T], in the type of the rewards"""
    return advantages.to(rewards.dtype)[:, None] * mask


def _group_mean(scores: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and size of each completion's group. [B] each"""
    _, index, counts = groups.unique(return_inverse=True, return_counts=True)
    sums = torch.zeros(len(counts), dtype=scores.dtype, device=scores.device).index_add(0, index, scores)
    return (sums / counts)[index], counts[index]
