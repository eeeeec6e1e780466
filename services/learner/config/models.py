"""Which models are trained, what they start from, and how: critic, reference, LoRA, optimizers."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from shared.config import Table


class CriticConfig(Table):
    trunk: Literal["own", "policy"] = "own"
    """A backbone of its own, or a value head on the policy's, which then learns from both losses."""
    path: Path | None = None
    """What the critic starts from; by default the policy's model. A language model, a reward model (sequence
    classification with one label) or a folder with a value head. With `trunk = "policy"` only its head."""


class LoraConfig(Table):
    rank: int = Field(default=16, ge=1)
    alpha: float = Field(default=32.0, gt=0)
    """The adapter's output is multiplied by `alpha / rank`, with `rslora` by `alpha / sqrt(rank)`."""
    rslora: bool = False
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """On the adapter's input while it is trained. Above 0 the first ratios of an update are not 1."""
    target_modules: tuple[str, ...] = ("all-linear",)
    """Ends of module names; `all-linear` is every linear layer but the output head."""
    adapters: tuple[Path, ...] = ()
    """Folders of adapters to start from, in peft's format. All but the last are merged into the base; the
    last is trained on, with the rank, alpha, rslora and target modules it has."""
    new_adapter: bool = False
    """Merge the last adapter too, and train a new one."""


class ModelsConfig(Table):
    critic: CriticConfig = CriticConfig()
    lora: LoraConfig | None = None
    """Train a low-rank adapter of the policy and leave its base as it is."""
    critic_lora: LoraConfig | None = None
    """The same for the critic's backbone; its value head is trained in full."""

    reference: Literal["start", "none"] = "start"
    """The policy as it was at the start of the run, or none, which saves its memory and its pass."""
    reference_path: Path | None = None
    """Another model as the reference."""
    reference_refresh_every: int = Field(default=0, ge=0)
    """PPO steps after which the reference becomes the policy of that moment; 0 is never."""

    gradient_checkpointing: bool = False
    """Compute each block's activations a second time in the backward pass, instead of keeping them."""

    # AdamW
    adam_betas: tuple[float, float] = (0.9, 0.999)
    adam_eps: float = Field(default=1e-8, gt=0)

    @model_validator(mode="after")
    def _models_fit_together(self) -> Self:
        if not all(0 <= beta < 1 for beta in self.adam_betas):
            raise ValueError(f"adam_betas = {list(self.adam_betas)}: each must be at least 0 and below 1")
        if self.critic.trunk == "policy" and self.critic_lora:
            raise ValueError("critic_lora adapts a critic of its own: remove it, or set critic.trunk = 'own'")
        if self.reference == "none" and (self.reference_path or self.reference_refresh_every):
            raise ValueError(
                "reference = 'none' goes with neither reference_path nor reference_refresh_every: remove "
                "them, or set reference = 'start'"
            )
        if self.reference_path and self.reference_refresh_every:
            raise ValueError(
                f"reference_refresh_every = {self.reference_refresh_every} would replace the model of "
                "reference_path by the policy: give one of them"
            )
        return self
