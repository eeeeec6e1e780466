"""Learning rates over a run. They depend on the step alone, so a resumed run needs no schedule state."""

import torch


def learning_rate_factor(step: int, steps: int, warmup_steps: int, final_ratio: float) -> float:
    """Share of the full learning rate at `step` (from 0) of `steps`.

    Linear from `1 / warmup_steps` to 1 over the warm-up, times a linear descent from 1 at the first step to
    `final_ratio` at the last.
    """
    warmup = min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0
    progress = step / (steps - 1) if steps > 1 else 0.0
    return warmup * (1.0 - (1.0 - final_ratio) * progress)


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
