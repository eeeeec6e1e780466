"""Gradient checkpointing (Chen et al. 2016): memory for the activations of one block instead of all."""

from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from services.learner.distributed import blocks


def recompute_activations(model: nn.Module) -> None:
    """Let each block keep only its input, and run forward a second time when its gradient is computed.

    Call it before `distributed.shard`. Hugging Face's own switch acts in training mode only, which would also
    turn dropout on.

    Raises:
        ValueError: the model does not say what its blocks are.
    """
    found = blocks(model)
    if not found:
        raise ValueError(
            f"gradient_checkpointing = true, but {type(model).__name__} names no blocks (_no_split_modules): "
            "set it to false for this model"
        )
    for block in found:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)  # type: ignore[method-assign]
