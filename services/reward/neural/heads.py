"""Heads: from a model and a padded batch to numbers. Each equals the head of the trainer it is named for.

Shapes: `B` rows, `S` tokens, `H` hidden size, `N` states that are read in all rows.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from services.reward.neural.config import StepsConfig


class Batch(NamedTuple):
    """Rows padded on the right."""

    input_ids: Tensor
    """[B, S]"""
    attention_mask: Tensor
    """[B, S]"""
    rows: Tensor
    """Of each state that is read, its row. [N]"""
    positions: Tensor
    """Of each state that is read, its position. [N]"""


class Head(Protocol):
    reads_states: bool
    """Whether it scores the states that are read; otherwise each row as a whole."""

    def __call__(self, model: PreTrainedModel, batch: Batch) -> Tensor:
        """One float32 number per state read [N], or per row [B]."""


class LinearHead:
    """A linear layer on the states of the backbone: sequence classification and value heads of decoders."""

    reads_states = True

    def __init__(self, layer: nn.Module) -> None:
        self._layer = layer.float()

    def __call__(self, model: PreTrainedModel, batch: Batch) -> Tensor:
        return self._layer(_states(model, batch).float()).squeeze(-1)


class PooledHead:
    """The model's own way from tokens to one number: encoders, which pool in ways of their own."""

    reads_states = False

    def __call__(self, model: PreTrainedModel, batch: Batch) -> Tensor:
        return model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits[:, 0].float()


class TokenLabelHead:
    """The probability of the last label at each token read; with one label its number as it is."""

    reads_states = True

    def __call__(self, model: PreTrainedModel, batch: Batch) -> Tensor:
        logits = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
        labels = logits[batch.rows, batch.positions].float()
        return labels[:, 0] if labels.shape[1] == 1 else labels.softmax(-1)[:, -1]


class NextTokenHead:
    """How probable one token is against another as the next one: p(good) / (p(good) + p(bad)).

    Source: Math-Shepherd (arXiv:2312.08935), whose step tag is followed by + or -.
    """

    reads_states = True

    def __init__(self, output: nn.Module, good: int, bad: int) -> None:
        self._output = output
        self._tokens = [bad, good]

    def __call__(self, model: PreTrainedModel, batch: Batch) -> Tensor:
        logits = self._output(_states(model, batch))[:, self._tokens]
        return logits.float().softmax(-1)[:, 1]


def next_token_head(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, steps: StepsConfig
) -> NextTokenHead:
    """Raises:
    ValueError: a token of `steps` is not one token, or the model bends its logits after the output layer.
    """
    for setting in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
        if getattr(model.config, setting, None) not in (None, 1, 1.0):
            raise ValueError(f"architecture 'causal_lm_steps' does not know models with {setting}")
    ids = {}
    for setting in ("good_token", "bad_token"):
        text = getattr(steps, setting)
        found = tokenizer.encode(text, add_special_tokens=False)
        if len(found) != 1:
            raise ValueError(f"steps.{setting} = {text!r} is {len(found)} tokens of this model, not one")
        ids[setting] = found[0]
    return NextTokenHead(model.get_output_embeddings(), ids["good_token"], ids["bad_token"])


def value_layer(tensors: dict[str, Tensor], prefix: str, device: torch.device) -> nn.Linear:
    """The linear layer with the tensors `{prefix}.weight` [1, H] and `{prefix}.bias` [1].

    Raises:
    ValueError: the weight is missing or has another shape.
    """
    weight, bias = tensors.get(f"{prefix}.weight"), tensors.get(f"{prefix}.bias")
    if weight is None or weight.ndim != 2 or weight.shape[0] != 1:
        seen = "missing" if weight is None else f"of shape {list(weight.shape)}"
        raise ValueError(f"the value head is no reward model's: {prefix}.weight is {seen}, not [1, hidden]")
    layer = nn.Linear(weight.shape[1], 1, bias=bias is not None)
    layer.load_state_dict({"weight": weight} if bias is None else {"weight": weight, "bias": bias})
    return layer.to(device).eval()


def _states(model: PreTrainedModel, batch: Batch) -> Tensor:
    """The backbone's last hidden states that are read. [N, H]"""
    backbone = model.base_model
    hidden = backbone(input_ids=batch.input_ids, attention_mask=batch.attention_mask).last_hidden_state
    return hidden[batch.rows, batch.positions]
