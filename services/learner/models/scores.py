"""What is read from the models: log-probabilities, entropies and values of completions.

Completions are right-padded and attention is causal, so no real token ever attends to padding: no attention
mask is passed, which keeps the fast causal kernels in use.

Shapes: `B` completions, `S` prompt and completion tokens, `T` completion tokens, `N` real completion tokens
(the true entries of `completion_mask`, row by row), `H` hidden size, `V` vocabulary.
"""

from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from services.learner.models.critic import Critic

Precision = Literal["float32", "bfloat16"]


class Sequences(Protocol):
    """What a forward pass needs to know of a batch (an `ExperienceBatch` is one)."""

    @property
    def input_ids(self) -> Tensor:
        """Right-padded. [B, S]"""

    @property
    def prompt_lengths(self) -> Tensor:
        """[B]"""

    @property
    def completion_mask(self) -> Tensor:
        """[B, T]"""


class TokenScores(NamedTuple):
    """Zero outside the completion mask."""

    logprobs: Tensor
    """Log-probability of each completion token under the sampling distribution. [B, T]"""
    entropy: Tensor
    """Entropy, in nats, of the distribution each token was drawn from. [B, T]"""


def score_completions(
    policy: PreTrainedModel,
    batch: Sequences,
    temperature: float,
    precision: Precision,
    train_entropy: bool = False,
) -> TokenScores:
    """Log-probabilities and entropies of the completions under the sampling temperature.

    The output head sees only the `N` states that a completion token was drawn from, so no logits are made for
    prompts or padding, and softmax runs in float32 whatever the precision.

    Args:
        train_entropy: let gradients flow through the entropy too, at the price of two more `[N, V]` tensors.
    """
    mask, states = batch.completion_mask, completion_states(batch)
    inputs = batch.input_ids[:, :-1]  # nothing follows the last token, so its state is never asked
    head = policy.get_output_embeddings()
    selection = head.register_forward_pre_hook(lambda _, args: (args[0].flatten(0, 1)[states][None],))
    try:
        with _autocast(inputs.device, precision):
            logits = policy(input_ids=inputs, use_cache=False).logits[0]  # [N, V]
    finally:
        selection.remove()
    distribution = torch.log_softmax(logits.float() / temperature, dim=-1)
    logprobs = distribution.gather(1, completion_tokens(batch)[:, None]).squeeze(1)
    with torch.set_grad_enabled(train_entropy and torch.is_grad_enabled()):
        entropy = -(distribution.exp() * distribution).sum(dim=-1)
    return TokenScores(_spread(logprobs, mask), _spread(entropy, mask))


def completion_values(critic: Critic, batch: Sequences, precision: Precision) -> Tensor:
    """Value of the state before each completion token, zero outside the mask. [B, T]"""
    inputs = batch.input_ids[:, :-1]
    with _autocast(inputs.device, precision):
        values = critic(inputs, completion_states(batch))
    return _spread(values, batch.completion_mask)


def completion_states(batch: Sequences) -> Tensor:
    """Where the state before each completion token lies among the flattened `[B * (S - 1)]` inputs. [N]

    The state before token `t` of a completion is the one after `prompt_length + t` tokens: position
    `prompt_length + t - 1`.
    """
    row, t = batch.completion_mask.nonzero(as_tuple=True)
    return row * (batch.input_ids.shape[1] - 1) + batch.prompt_lengths[row] + t - 1


def completion_tokens(batch: Sequences) -> Tensor:
    """The completion tokens themselves. [N]"""
    row, t = batch.completion_mask.nonzero(as_tuple=True)
    return batch.input_ids[row, batch.prompt_lengths[row] + t]


def _spread(values: Tensor, mask: Tensor) -> Tensor:
    """Put `N` values at the true positions of a mask, zeros elsewhere. [B, T]"""
    return torch.zeros(mask.shape, dtype=values.dtype, device=values.device).masked_scatter(mask, values)


def _autocast(device: torch.device, precision: Precision) -> torch.autocast:
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bfloat16")
