"""The distance between the policy and the reference, and the per-token rewards it shapes.

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


def score_on_last_token(scores: Tensor, mask: Tensor) -> Tensor:
    """Per-token rewards that are zero but for each row's last true position, which carries its score.

    A row without a true position carries nothing.

    Args:
        scores: one scalar per completion. [B]
        mask: true on the tokens of the completion, which are contiguous from position 0. [B, T]
    """
    last = torch.zeros_like(mask)
    last[:, :-1] = mask[:, :-1] & ~mask[:, 1:]
    last[:, -1:] = mask[:, -1:]
    return scores[:, None] * last


def kl_penalty(kl: Tensor, mask: Tensor, kl_coef: float) -> Tensor:
    """Per-token rewards `-kl_coef * kl` on the mask, zero elsewhere. [B, T]

    Added to `score_on_last_token` this is the shaped reward of Stiennon et al. 2020 and Ouyang et al. 2022
    (eq. 2), spread over the tokens.
    """
    return torch.where(mask, -kl_coef * kl, 0.0)
