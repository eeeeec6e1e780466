"""From the scorer's numbers to per-token rewards. Shapes: `B` completions, `T` completion tokens."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Placement = Literal["last", "every"]


def place_scores(scores: Tensor, mask: Tensor, placement: Placement) -> Tensor:
    """Per-token rewards that carry each completion's score. [B, T]

    `last` puts it on the last true position (Ouyang et al. 2022). `every` puts the whole score on every true
    position, as ColossalChat's experience maker does: a completion is then worth its score times its length.
    A row without a true position carries nothing.

    Args:
        scores: one scalar per completion. [B]
        mask: true on the tokens of the completion, which are contiguous from position 0. [B, T]
    """
    if placement == "every":
        return scores[:, None] * mask
    last = torch.zeros_like(mask)
    last[:, :-1] = mask[:, :-1] & ~mask[:, 1:]
    last[:, -1:] = mask[:, -1:]
    return scores[:, None] * last


@dataclass(frozen=True)
class RunningMoments:
    """Count, mean and sum of squared deviations of all numbers seen so far."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def including(self, values: Tensor) -> "RunningMoments":
        """With more numbers (Chan, Golub and LeVeque 1979, eq. 2.1)."""
        count = values.numel()
        if not count:
            return self
        mean = float(values.double().mean())
        squares = float((values.double() - mean).square().sum())
        total, distance = self.count + count, mean - self.mean
        return RunningMoments(
            total,
            self.mean + distance * count / total,
            self.squares + squares + distance**2 * self.count * count / total,
        )

    @property
    def std(self) -> float:
        """Unbiased; 0 for fewer than two numbers."""
        return math.sqrt(self.squares / (self.count - 1)) if self.count > 1 else 0.0

    @property
    def divisor(self) -> float:
        """What scores are divided by: 1 where all are the same and have no spread to be measured in."""
        return self.std + 1e-8 if self.std > 0 else 1.0


def normalised(scores: Tensor, moments: RunningMoments, shift_mean: bool) -> Tensor:
    """Scores in standard deviations of all scores so far, with `shift_mean` around their mean. [B]

    Source: the score scaling and normalisation of TRL 0.9.6, which LLaMA-Factory's `ppo_score_norm` turns on.
    """
    centred = scores - moments.mean if shift_mean else scores
    return centred / moments.divisor
