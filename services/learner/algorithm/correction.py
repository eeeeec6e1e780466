"""Weights that make up for completions that were not sampled from the policy at the start of the update.

Three policies meet in a stale batch: the one that sampled (behaviour), the one at the start of the update
(proximal, whose logprobs are `old_logprobs`), and the one being trained. The PPO ratio is between the last
two; the weights here bridge the first two (Hilton et al. 2022, "decoupled PPO").

Shapes: `B` completions, `T` completion tokens.
"""

import math
from typing import Literal

import torch
from torch import Tensor

Level = Literal["none", "token", "sequence", "geometric"]


def importance_weights(log_ratio: Tensor, mask: Tensor, level: Level, cap: float) -> Tensor:
    """Truncated importance weights `min(exp(x), cap)`; 1 outside the mask, and everywhere for `none`. [B, T]

    `x` is the token's own log-ratio (`token`), the sum over its completion (`sequence`, unbiased without the
    cap, of high variance), or the mean over it (`geometric`). Truncation as in IMPALA (Espeholt et al. 2018)
    and TIS (Yao et al. 2025).

    Args:
        log_ratio: `old_logprobs - rollout_logprobs`. [B, T]
    """
    if level == "none":
        return torch.ones_like(log_ratio)
    return torch.where(mask, _at_level(log_ratio, mask, level).clamp(max=math.log(cap)).exp(), 1.0)


def inside_band(log_ratio: Tensor, mask: Tensor, level: Level, low: float, high: float) -> Tensor:
    """1 where the ratio of its level lies within `[low, high]`, else 0: what lies outside teaches nothing.

    `token` is the band of IcePop (Ling team 2025), `geometric` the sequence mask on the mean log-ratio (verl
    and slime's "geometric" rejection), `none` lets everything pass. 1 outside the mask. [B, T]
    """
    if level == "none":
        return torch.ones_like(log_ratio)
    ratio = _at_level(log_ratio, mask, level)
    return torch.where(mask, ((ratio >= math.log(low)) & (ratio <= math.log(high))).to(log_ratio.dtype), 1.0)


def loglinear_proximal(logprobs: Tensor, rollout_logprobs: Tensor, staleness: Tensor) -> Tensor:
    """`old_logprobs` without a forward pass: on the line between behaviour and the policy being trained.

    `rollout + s / (s + 1) (logprobs - rollout)` for a token that is `s` versions old: the proximal policy is
    `s` of the `s + 1` updates away from the one that sampled it. At `s = 0` it is the behaviour policy.
    Source: AReaL, `prox_approx_method = "loglinear"`.

    Args:
        logprobs: of the policy being trained, without gradient. [B, T]
        staleness: versions between the sampling of each token and the start of the update. [B, T]
    """
    share = staleness / (staleness + 1)
    return rollout_logprobs + share * (logprobs - rollout_logprobs)


def effective_sample_share(weights: Tensor, mask: Tensor) -> float:
    """`(sum w)^2 / (n sum w^2)` over the masked tokens (Kish 1965): 1 for equal weights, near 0 when few
    carry all."""
    chosen = weights[mask].double()
    squares = float(chosen.square().sum())
    return float(chosen.sum()) ** 2 / (chosen.numel() * squares) if squares > 0 else 0.0


def _at_level(log_ratio: Tensor, mask: Tensor, level: Level) -> Tensor:
    """The log-ratio that a token is judged by. [B, T]"""
    if level == "token":
        return log_ratio
    total = torch.where(mask, log_ratio, 0.0).sum(dim=1, keepdim=True)
    if level == "geometric":
        total = total / mask.sum(dim=1, keepdim=True).clamp(min=1)
    return total.expand_as(log_ratio)
