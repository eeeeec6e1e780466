"""The three models of PPO: policy, reference and critic, and what is read from them.

Completions are right-padded and attention is causal, so no real token ever attends to padding: no attention
mask is passed, which keeps the fast causal kernels in use.

Shapes: `B` completions, `S` prompt and completion tokens, `T` completion tokens, `N` real completion tokens
(the true entries of `completion_mask`, row by row), `H` hidden size, `V` vocabulary.
"""

from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoModel,
    AutoModelForCausalLM,
    PreTrainedModel,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

Precision = Literal["float32", "bfloat16"]

_CRITIC_HEAD = "value_head.safetensors"
_LOADING: dict[str, Any] = {
    "dtype": torch.float32,  # master weights; the precision of a forward pass is autocast's business
    "attn_implementation": "learner_sdpa",
    "trust_remote_code": False,
}


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Scaled dot-product attention, in float32 on CPU, where its bfloat16 backward is twice as slow."""
    if query.device.type != "cpu":
        return sdpa_attention_forward(module, query, key, value, mask, **kwargs)
    with torch.autocast("cpu", enabled=False):
        return sdpa_attention_forward(module, query.float(), key.float(), value.float(), mask, **kwargs)


AttentionInterface.register("learner_sdpa", _attention)
AttentionMaskInterface.register("learner_sdpa", sdpa_mask)


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


class Critic(nn.Module):
    """A backbone of its own and a linear head that gives the value of a state.

    The head starts at zero, so that at first every value is 0 and advantages are plain returns.
    """

    def __init__(self, backbone: PreTrainedModel) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(backbone.config.hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, input_ids: Tensor, states: Tensor) -> Tensor:
        """Values of the chosen states; `states` indexes the flattened `[B * S]` positions. [N]"""
        hidden = self.backbone(input_ids=input_ids, use_cache=False).last_hidden_state
        return self.head(hidden.flatten(0, 1)[states]).squeeze(-1).float()


def load_policy(path: str | Path) -> PreTrainedModel:
    """A causal language model in float32, without dropout, to train."""
    model = AutoModelForCausalLM.from_pretrained(path, **_LOADING)
    return model.eval()  # eval mode is what turns dropout off; gradients flow all the same


def load_reference(path: str | Path) -> PreTrainedModel:
    """The same model frozen: the policy is held near it."""
    return load_policy(path).requires_grad_(False)


def new_critic(policy_path: str | Path) -> Critic:
    """A critic whose backbone is a copy of the policy's."""
    return Critic(AutoModel.from_pretrained(policy_path, **_LOADING)).eval()


def load_critic(directory: str | Path) -> Critic:
    """A critic that `save_critic` wrote."""
    critic = new_critic(directory)
    critic.head.load_state_dict(load_file(Path(directory) / _CRITIC_HEAD))
    return critic


def save_critic(critic: Critic, state: dict[str, Tensor], directory: str | Path) -> None:
    """Write a critic as a Hugging Face backbone with its value head beside it.

    Args:
        critic: gives the configuration; its own tensors may be sharded and are not read.
        state: its full tensors by name, as `distributed.full_state` gathers them.
    """
    backbone = {k.removeprefix("backbone."): v for k, v in state.items() if k.startswith("backbone.")}
    head = {k.removeprefix("head."): v.contiguous() for k, v in state.items() if k.startswith("head.")}
    critic.backbone.save_pretrained(directory, state_dict=backbone)
    save_file(head, Path(directory) / _CRITIC_HEAD)


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
