"""The policy and the reference: causal language models."""

from pathlib import Path

from transformers import AutoModelForCausalLM, PreTrainedModel

from services.learner.models.loading import LOADING, reading


def load_policy(path: str | Path) -> PreTrainedModel:
    """A causal language model in float32, without dropout, to train.

    Raises:
        ValueError: no such model there.
    """
    with reading(path, "a causal language model"):
        model = AutoModelForCausalLM.from_pretrained(path, **LOADING)
    return model.eval()  # eval mode is what turns dropout off; gradients flow all the same


def load_reference(path: str | Path) -> PreTrainedModel:
    """The same model frozen: the policy is held near it."""
    return load_policy(path).requires_grad_(False)
