"""What is read from the models: log-probabilities, entropies and values of completions.

A batch is padded, its forward passes are not: they read its sequences packed into one row.

Shapes: `B` completions, `S` prompt and completion tokens, `T` completion tokens, `N` real completion tokens
(the true entries of `completion_mask`, row by row), `H` hidden size, `V` vocabulary.
"""

from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from services.learner.models.critic import Critic
from services.learner.models.packing import Packed, pack
from services.learner.models.trunk import TrunkCritic, read_states

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

    @property
    def lengths(self) -> Tensor:
        """Tokens of each row. [B]"""


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

    Softmax runs in float32 whatever the precision.

    Args:
        train_entropy: let gradients flow through the entropy too, at the price of two more `[N, V]` tensors.
    """
    logits, _ = _forward(policy, batch, precision)
    return _token_scores(logits, batch, temperature, train_entropy)


def scores_with_values(
    policy: PreTrainedModel,
    batch: Sequences,
    temperature: float,
    precision: Precision,
    train_entropy: bool = False,
) -> tuple[TokenScores, Tensor]:
    """`score_completions` of a policy that has a value head, and from the same pass what `completion_values`
    gives. Values [B, T]"""
    logits, values = _forward(policy, batch, precision)
    assert values is not None, "the policy has no value head"
    return _token_scores(logits, batch, temperature, train_entropy), _spread(values, batch.completion_mask)


def _forward(policy: PreTrainedModel, batch: Sequences, precision: Precision) -> tuple[Tensor, Tensor | None]:
    """Logits, and values if there is a head, where completion tokens were drawn. [N, V], [N]"""
    row = packed_inputs(batch)
    with _autocast(batch, precision):
        return read_states(policy, row, completion_states(batch, row))


def _token_scores(logits: Tensor, batch: Sequences, temperature: float, train_entropy: bool) -> TokenScores:
    mask = batch.completion_mask
    distribution = torch.log_softmax(logits.float() / temperature, dim=-1)
    logprobs = distribution.gather(1, completion_tokens(batch)[:, None]).squeeze(1)
    with torch.set_grad_enabled(train_entropy and torch.is_grad_enabled()):
        entropy = -(distribution.exp() * distribution).sum(dim=-1)
    return TokenScores(_spread(logprobs, mask), _spread(entropy, mask))


def completion_values(critic: Critic | TrunkCritic, batch: Sequences, precision: Precision) -> Tensor:
    """Value of the state before each completion token, zero outside the mask. [B, T]"""
    row = packed_inputs(batch)
    with _autocast(batch, precision):
        values = critic(row, completion_states(batch, row))
    return _spread(values, batch.completion_mask)


def final_values(critic: Critic | TrunkCritic, batch: Sequences, precision: Precision) -> Tensor:
    """Value of the state after each completion's last token; of the prompt where there is no token. [B]"""
    row = pack(batch.input_ids, batch.lengths)
    with _autocast(batch, precision):
        return critic(row, row.bounds[1:] - 1)


def packed_inputs(batch: Sequences) -> Packed:
    """The sequences as one row, each without its last token: the state after it is never asked for."""
    return pack(batch.input_ids, batch.lengths - 1)


def completion_states(batch: Sequences, inputs: Packed) -> Tensor:
    """Where the state before each completion token lies in the packed inputs. [N]

    The state before token `t` of a completion is the one after `prompt_length + t` tokens: position
    `prompt_length + t - 1`.
    """
    row, t = batch.completion_mask.nonzero(as_tuple=True)
    return inputs.bounds[row] + batch.prompt_lengths[row] + t - 1


def completion_tokens(batch: Sequences) -> Tensor:
    """The completion tokens themselves. [N]"""
    row, t = batch.completion_mask.nonzero(as_tuple=True)
    return batch.input_ids[row, batch.prompt_lengths[row] + t]


def _spread(values: Tensor, mask: Tensor) -> Tensor:
    """Put `N` values at the true positions of a mask, zeros elsewhere. [B, T]"""
    return torch.zeros(mask.shape, dtype=values.dtype, device=values.device).masked_scatter(mask, values)


def _autocast(batch: Sequences, precision: Precision) -> torch.autocast:
    return torch.autocast(batch.input_ids.device.type, dtype=torch.bfloat16, enabled=precision == "bfloat16")
