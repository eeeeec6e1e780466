"""The value head: one linear layer from a state's hidden vector to its value, and its file.

The file `value_head.safetensors` has the names that TRL's and LLaMA-Factory's value heads have.
ColossalChat's critics keep their head among the model's weights, under a name of its own.
"""

import logging
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

log = logging.getLogger("rollstream.models")

_FILE = "value_head.safetensors"
_PREFIX = "v_head.summary."
_COLOSSALCHAT = "value_head."


class ValueHead(nn.Linear):
    """Starts at zero, so that at first every value is 0 and advantages are plain returns."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__(hidden_size, 1)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def values(self, hidden: Tensor) -> Tensor:
        """Values of states, in float32 whatever the precision of the pass. [N, H] to [N]"""
        with torch.autocast(hidden.device.type, enabled=False):
            return self(hidden.float()).squeeze(-1)

    @torch.no_grad()
    def set(self, weight: Tensor, bias: Tensor | None, source: str | Path) -> None:
        """Take these weights.

        Raises:
            ValueError: they are not those of one value per state of this hidden size.
        """
        if weight.shape != self.weight.shape:
            raise ValueError(
                f"the value head in {source} has shape {tuple(weight.shape)}, the critic's trunk needs "
                f"{tuple(self.weight.shape)}: one value for each state of this hidden size"
            )
        self.weight.copy_(weight)
        self.bias.zero_() if bias is None else self.bias.copy_(bias)

    def load(self, folder: str | Path) -> bool:
        """Take the value head that lies in a folder; false if none does.

        It is looked for in `value_head.safetensors` and, as TRL's value-head models and ColossalChat's
        critics have it, among the model's own weights.

        Raises:
            ValueError: a head of another shape, or one in a pickle.
        """
        for file in [Path(folder) / _FILE, *weight_files(folder)]:
            if not file.is_file():
                continue
            with safe_open(file, framework="pt") as tensors:
                names = set(tensors.keys())
                for prefix in (_PREFIX, "") if file.name == _FILE else (_PREFIX, _COLOSSALCHAT):
                    if f"{prefix}weight" in names:
                        bias = tensors.get_tensor(f"{prefix}bias") if f"{prefix}bias" in names else None
                        self.set(tensors.get_tensor(f"{prefix}weight"), bias, file)
                        log.info("value head from %s", file)
                        return True
        if (pickled := Path(folder) / "value_head.bin").is_file():
            raise ValueError(
                f"{pickled} is a pickle, which is never loaded. Convert it where you trust it, with "
                f"safetensors.torch.save_file(torch.load('value_head.bin', weights_only=True), '{_FILE}')"
            )
        return False


def weight_files(folder: str | Path) -> list[Path]:
    """The model's own weights."""
    return sorted(Path(folder).glob("model*.safetensors"))


def is_colossalchat_critic(folder: str | Path) -> bool:
    """Whether ColossalChat saved it: its `Critic` (coati/models/critic.py) has `model` and `value_head`."""
    for file in weight_files(folder):
        with safe_open(file, framework="pt") as tensors:
            if f"{_COLOSSALCHAT}weight" in set(tensors.keys()):
                return True
    return False


def save_value_head(weight: Tensor, bias: Tensor, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    state = {f"{_PREFIX}weight": weight.contiguous(), f"{_PREFIX}bias": bias.contiguous()}
    save_file(state, folder / _FILE)
