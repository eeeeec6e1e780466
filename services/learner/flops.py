"""Model FLOPs utilisation: the arithmetic that an update needs, against what the devices could do."""

import torch

from services.learner.models.actor_critic import ActorCritic

PEAK_TFLOPS = {"H200": 989, "H100": 989, "A100": 312, "L40S": 362, "L4": 121, "RTX 4090": 165}
"""Dense bfloat16 peak by a part of the device's name, from the makers' data sheets."""


def known_peak(device: torch.device) -> float | None:
    """TFLOP/s of a device whose peak is known; None for others, and for CPUs."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in PEAK_TFLOPS.items() if part in name), None)


def update_flops(models: ActorCritic, evaluated: float, trained: float) -> float:
    """What one update needs: 2 FLOPs a parameter and token forward, 6 forward and backward.

    Attention over the sequence and recomputed activations are not counted (Chowdhery et al. 2022, appendix B,
    without their attention term).

    Args:
        evaluated: tokens that went through each model before the update.
        trained: tokens that policy and critic were trained on.
    """
    learning = sum(_parameters(model) for _, model, _ in models.optimizers())
    reference = _parameters(models.reference) if isinstance(models.reference, torch.nn.Module) else 0
    return 2 * evaluated * (learning + reference) + 6 * trained * learning


def _parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
