"""The critic: a backbone with a linear head that gives the value of every state."""

import json
from pathlib import Path

from torch import Tensor, nn
from transformers import AutoModel, AutoModelForSequenceClassification, PreTrainedModel

from services.learner.models.loading import LOADING, reading
from services.learner.models.lora import merged_state
from services.learner.models.packing import Packed, check_packs
from services.learner.models.value_head import ValueHead, is_colossalchat_critic, save_value_head


class Critic(nn.Module):
    """A backbone of its own and a linear head that gives the value of a state."""

    def __init__(self, backbone: PreTrainedModel) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = ValueHead(backbone.config.get_text_config().hidden_size)

    def forward(self, row: Packed, states: Tensor) -> Tensor:
        """Values of the states at these positions of the row. [N]"""
        hidden = self.backbone(**row.arguments()).last_hidden_state
        return self.head.values(hidden[0, states])


def load_critic(path: str | Path) -> Critic:
    """A critic from any of these folders, in float32, without dropout:

    - one that `save_critic` wrote, a value-head model of TRL or LLaMA-Factory, or a critic of ColossalChat;
    - a reward model (sequence classification with one label): values start as its scores;
    - a language model: values start at zero.

    Raises:
        ValueError: no usable model or head there, or a model whose sequences cannot be packed.
    """
    if _classifies(path):
        return _from_reward_model(path)
    with reading(path, "a critic's backbone"):
        # ColossalChat calls every backbone `model`, whatever its architecture does.
        names = {r"^model\.": ""} if is_colossalchat_critic(path) else None
        backbone, info = AutoModel.from_pretrained(
            path, key_mapping=names, output_loading_info=True, **LOADING
        )
        if lacking := sorted(info["missing_keys"]):  # transformers would fill them with random numbers
            raise ValueError(f"its weights lack {', '.join(lacking[:3])}; save the whole model there")
        critic = Critic(backbone)
        check_packs(critic.backbone)
    critic.head.load(path)
    return critic.eval()


def save_critic(critic: Critic, state: dict[str, Tensor], directory: str | Path) -> None:
    """Write a critic as a Hugging Face backbone, adapters merged, with its value head beside it.

    Args:
        critic: gives the configuration; its own tensors may be sharded and are not read.
        state: its full tensors by name, as `distributed.full_state` gathers them.
    """
    merged = merged_state(critic.backbone, backbone_state(state))
    critic.backbone.save_pretrained(directory, state_dict=merged)
    save_value_head(state["head.weight"], state["head.bias"], Path(directory))


def backbone_state(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of a critic's full tensors those of its backbone, under the backbone's own names."""
    return {k.removeprefix("backbone."): v for k, v in state.items() if k.startswith("backbone.")}


def _classifies(path: str | Path) -> bool:
    config = Path(path) / "config.json"
    names = json.loads(config.read_text()).get("architectures") if config.is_file() else None
    return any(name.endswith("ForSequenceClassification") for name in names or [])


def _from_reward_model(path: str | Path) -> Critic:
    with reading(path, "a reward model"):
        model, info = AutoModelForSequenceClassification.from_pretrained(
            path, output_loading_info=True, **LOADING
        )
        check_packs(model)
    score = getattr(model, "score", None)
    if not isinstance(score, nn.Linear) or any(name.startswith("score.") for name in info["missing_keys"]):
        raise ValueError(
            f"{path} is no reward model that values can start from: it has no layer 'score' over the states "
            "of a causal model. Train one as AutoModelForSequenceClassification with num_labels=1"
        )
    critic = Critic(model.base_model)
    critic.head.set(score.weight, score.bias, path)
    return critic.eval()
