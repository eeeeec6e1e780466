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


def update_flops(
    models: ActorCritic, evaluated: float, trained: float, *, recomputes: bool, trains_policy: bool
) -> float:
    """What one update needs: 2 FLOPs a parameter and token forward, 6 forward and backward.

    Attention over the sequence and recomputed activations are not counted (Chowdhery et al. 2022, appendix B,
    without their attention term).

    Args:
        evaluated: tokens that went through each model before the update.
        trained: tokens that policy and critic were trained on.
        recomputes: whether the old logprobs took a pass through the policy.
        trains_policy: whether the policy learns too, or a critic of its own alone.
    """
    policy, learning = _parameters(models.policy), sum(_parameters(m) for _, m, _ in models.optimizers())
    reference = 0
    if models.reference is not None:  # which under LoRA is the policy with other adapters
        model = models.reference if isinstance(models.reference, torch.nn.Module) else models.policy
        reference = _parameters(model)
    passes = learning + reference - (0 if recomputes else policy)
    return 2 * evaluated * passes + 6 * trained * (learning - (0 if trains_policy else policy))


def _parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
