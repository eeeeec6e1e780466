"""The distance between the policy and the reference, what it costs, and how its coefficient adapts.

Shapes: `B` completions, `T` completion tokens.
"""

from typing import Literal

import torch
from torch import Tensor

KLEstimator = Literal["k1", "k2", "k3"]


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, estimator: KLEstimator) -> Tensor:
    """Estimate of KL(policy || reference) at each token, from the one token that was sampled.

    With `d = logprobs - ref_logprobs`: k1 is `d`, unbiased and of either sign; k2 is `d^2 / 2`, biased and
    never negative; k3 is `exp(-d) - 1 + d`, unbiased and never negative (Schulman, "Approximating KL
    Divergence", 2020).

    Args:
        logprobs: log-probability of each sampled token under the policy. [B, T]
        ref_logprobs: the same under the reference. [B, T]

    Returns:
        Nats per token, meaningful where the completion mask is true. [B, T]
    """
    difference = logprobs - ref_logprobs
    match estimator:
        case "k1":
            return difference
        case "k2":
            return difference.square() / 2
        case "k3":
            return torch.expm1(-difference) + difference
    raise ValueError(f"unknown KL estimator {estimator!r}: use k1, k2 or k3")


def kl_penalty(kl: Tensor, mask: Tensor, kl_coef: float) -> Tensor:
    """Per-token rewards `-kl_coef * kl` on the mask, zero elsewhere. [B, T]

    Added to `rewards.place_scores` this is the shaped reward of Stiennon et al. 2020 and Ouyang et al. 2022
    (eq. 2), spread over the tokens.
    """
    return torch.where(mask, -kl_coef * kl, 0.0)


def adapted_kl_coef(
    kl_coef: float, kl: float, completions: int, target: float, horizon: float, clip: float = 0.2
) -> float:
    """The coefficient after a batch: higher when the distance is above its target, lower when below.

    `e = clip(kl / target - 1, -clip, clip)` and `kl_coef * (1 + e * completions / horizon)` (Ziegler et al.
    2019, section 2.2).

    Args:
        kl: mean over completions of the distance summed over their tokens, in nats.
        completions: how many the batch had, on all ranks.
        target: distance to keep, in nats a completion.
        horizon: completions in which the coefficient changes by the factor `e` of `1 + e`.
    """
    error = min(max(kl / target - 1, -clip), clip)
    return kl_coef * (1 + error * completions / horizon)
