"""The policy and the reference: causal language models."""

from pathlib import Path

from transformers import AutoModelForCausalLM, PreTrainedModel

from services.learner.models.loading import LOADING, reading
from services.learner.models.packing import check_packs


def load_policy(path: str | Path) -> PreTrainedModel:
    """A causal language model in float32, without dropout, to train.

    Raises:
        ValueError: no such model there, or one whose sequences cannot be packed.
    """
    with reading(path, "a causal language model"):
        model = AutoModelForCausalLM.from_pretrained(path, **LOADING)
        check_packs(model)
    return model.eval()  # eval mode is what turns dropout off; gradients flow all the same


def load_reference(path: str | Path) -> PreTrainedModel:
    """The same model frozen: the policy is held near it."""
    return load_policy(path).requires_grad_(False)
