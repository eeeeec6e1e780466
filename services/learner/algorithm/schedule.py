"""Learning rates over a run, and what is done every so many steps of it. All depends on the step alone, so a
resumed run needs no schedule state."""

import math
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]


def learning_rate_factor(
    step: int, steps: int, warmup_steps: int, schedule: Schedule, final_ratio: float
) -> float:
    """Share of the full learning rate at `step` (from 0) of `steps`.

    A rise from `1 / warmup_steps` to 1 over the warm-up, times a descent from 1 at the first step to
    `final_ratio` at the last: along a line, or half a cosine (Loshchilov and Hutter 2017, eq. 5).
    """
    warmup = min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0
    progress = step / (steps - 1) if steps > 1 else 0.0
    gone = {"constant": 0.0, "linear": progress, "cosine": (1 - math.cos(math.pi * progress)) / 2}[schedule]
    return warmup * (1.0 - (1.0 - final_ratio) * gone)


def is_due(step: int, every: int, steps: int) -> bool:
    """Whether `step` of `steps` ends with what is done every so many steps, and after the last."""
    return step % every == 0 or step == steps
