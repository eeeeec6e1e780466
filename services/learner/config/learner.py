"""The `[learner]` table: one flat table, whose keys are declared by topic in the files of this folder."""

from typing import Literal

from pydantic import Field, model_validator

from services.learner.config.algorithm import AlgorithmConfig
from services.learner.config.data import DataConfig
from services.learner.config.evaluation import EvaluationConfig
from services.learner.config.generation import GenerationConfig
from services.learner.config.models import CriticConfig, ModelsConfig
from services.learner.config.tracking import TrackingConfig
from shared.config import Settings


class LearnerConfig(
    DataConfig, GenerationConfig, EvaluationConfig, AlgorithmConfig, ModelsConfig, TrackingConfig
):
    # Loop
    steps: int = Field(default=100, ge=1)
    groups_per_step: int = Field(default=32, ge=1)
    """Prompts consumed by one PPO step."""
    max_staleness: int = Field(default=0, ge=0)
    """How many policy versions old a group may be when it is trained on. 0 is synchronous on-policy PPO."""
    ranks: int = Field(default=1, ge=1)
    """torch.distributed processes that the launcher starts for the learner."""
    resume: bool = False
    """Go on from the newest checkpoint of the run."""

    # Optimizers
    policy_lr: float = Field(default=3e-6, gt=0)
    critic_lr: float = Field(default=1e-5, gt=0)
    warmup_steps: int = Field(default=0, ge=0)
    """PPO steps over which both learning rates rise linearly to their full value."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How both learning rates descend over the run."""
    final_lr_ratio: float = Field(default=0.1, ge=0, le=1)
    """Share of the learning rates that a linear or cosine descent leaves at the last step."""
    weight_decay: float = Field(default=0.0, ge=0)

    peak_tflops: float | None = Field(default=None, gt=0)
    """TFLOP/s of one rank's device, for the metric `mfu`; known for common GPUs."""

    # Housekeeping
    checkpoint_every: int = Field(default=10, ge=1)
    """Steps between checkpoints; the last step always writes one. Experience is acknowledged after it."""
    keep_checkpoints: int = Field(default=2, ge=1)
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """Where rank 0 shows its metrics to Prometheus, given the run's token; nowhere if not set. 0 takes any
    free port."""
    metrics_host: str = "127.0.0.1"
    rollout_timeout: float = Field(default=600.0, gt=0)
    """Seconds without any arriving group after which the learner gives up with an error."""

    @model_validator(mode="after")
    def _parts_fit_together(self) -> "LearnerConfig":
        if bool(self.ptx) != bool(self.ptx_coef):
            raise ValueError(
                f"ptx_coef = {self.ptx_coef} and ptx {'is' if self.ptx else 'is not'} given: the loss on "
                "supervised rows needs a coefficient above 0 and a dataset"
            )
        if self.critic.trunk == "policy" and self.critic_warmup_steps:
            raise ValueError(
                f"critic_warmup_steps = {self.critic_warmup_steps} would train the policy's trunk too: set "
                "it to 0, or critic.trunk = 'own'"
            )
        compares = self.advantage_estimator not in ("gae", "reinforce_plus_plus")
        if compares and self.completions_per_prompt < 2:
            raise ValueError(
                f"advantage_estimator = {self.advantage_estimator!r} compares the completions of a prompt: "
                f"completions_per_prompt = {self.completions_per_prompt} must be at least 2"
            )
        return self

    @model_validator(mode="after")
    def _batch_divides(self) -> "LearnerConfig":
        sequences = self.groups_per_step * self.completions_per_prompt
        if sequences % (self.minibatches * self.ranks):
            raise ValueError(
                f"groups_per_step x completions_per_prompt = {sequences} must be a multiple of "
                f"minibatches x ranks = {self.minibatches * self.ranks}"
            )
        return self

    @model_validator(mode="after")
    def _algorithm_fits_models(self) -> "LearnerConfig":
        if self.reference == "none" and self.kl_coef:
            raise ValueError(
                f"kl_coef = {self.kl_coef} charges the distance to a reference, and reference = 'none': set "
                "kl_coef to 0, or reference to 'start'"
            )
        if not self.has_critic and (self.critic_lora or self.critic != CriticConfig()):
            raise ValueError(
                f"advantage_estimator = {self.advantage_estimator!r} trains no critic: leave out "
                "[learner.critic] and [learner.critic_lora], or use 'gae'"
            )
        return self


class LearnerSettings(Settings):
    learner: LearnerConfig
