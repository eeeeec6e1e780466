"""The critic: a backbone with a linear head that gives the value of every state."""

from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel

from services.learner.models.loading import LOADING

_HEAD = "value_head.safetensors"


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


def new_critic(policy_path: str | Path) -> Critic:
    """A critic whose backbone is a copy of the policy's."""
    return Critic(AutoModel.from_pretrained(policy_path, **LOADING)).eval()


def load_critic(directory: str | Path) -> Critic:
    """A critic that `save_critic` wrote."""
    critic = new_critic(directory)
    critic.head.load_state_dict(load_file(Path(directory) / _HEAD))
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
    save_file(head, Path(directory) / _HEAD)
