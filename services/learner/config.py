"""The `[learner]` table."""

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from shared.config import Settings, Table


class LearnerConfig(Table):
    # Data
    prompts: Path
    """JSONL file of training prompts: `messages` or `question`, and `ground_truth` or `answer`."""
    heldout: Path | None = None
    """JSONL file of held-out prompts for evaluation; none means no evaluation."""
    max_prompt_tokens: int = Field(default=512, ge=1)
    """Longer prompts are left out, and counted."""

    # Loop
    steps: int = Field(default=100, ge=1)
    groups_per_step: int = Field(default=32, ge=1)
    """Prompts consumed by one PPO step."""
    completions_per_prompt: int = Field(default=4, ge=1)
    max_staleness: int = Field(default=0, ge=0)
    """How many policy versions old a group may be when it is trained on. 0 is synchronous on-policy PPO."""
    ranks: int = Field(default=1, ge=1)
    """torch.distributed processes that the launcher starts for the learner."""
    resume: bool = False
    """Go on from the newest checkpoint of the run."""

    # Generation
    max_new_tokens: int = Field(default=256, ge=1)
    temperature: float = Field(default=1.0, gt=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Below 1, rollout log-probabilities are renormalised over the kept tokens and the learner's are not."""

    # PPO
    policy_lr: float = Field(default=3e-6, gt=0)
    critic_lr: float = Field(default=1e-5, gt=0)
    warmup_steps: int = Field(default=0, ge=0)
    """PPO steps over which both learning rates rise linearly to their full value."""
    final_lr_ratio: float = Field(default=1.0, ge=0, le=1)
    """Share of the learning rates that is left at the last step, after a linear descent."""
    weight_decay: float = Field(default=0.0, ge=0)
    epochs: int = Field(default=2, ge=1)
    """Passes over each batch."""
    minibatches: int = Field(default=4, ge=1)
    """Optimizer steps per pass."""
    micro_batch_tokens: int = Field(default=8192, ge=1)
    """Padded tokens in one forward and backward pass; bounds memory, never changes the result."""
    gamma: float = Field(default=1.0, gt=0, le=1)
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    kl_coef: float = Field(default=0.05, ge=0)
    """Weight of the per-token KL penalty against the reference policy, the model the run started from."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k1"
    clip_low: float = Field(default=0.2, gt=0)
    clip_high: float = Field(default=0.2, gt=0)
    value_clip: float = Field(default=0.2, gt=0)
    vf_coef: float = Field(default=0.1, gt=0)
    entropy_coef: float = Field(default=0.0, ge=0)
    reward_scale: float = Field(default=1.0, gt=0)
    """Rewards are multiplied by this before training; logs and reports show them unscaled."""
    whiten_advantages: bool = True
    importance_cap: float = Field(default=2.0, gt=0)
    """Cap of the engine-to-learner importance weight on stale data."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    precision: Literal["float32", "bfloat16"] = "float32"
    """Type of the forward and backward pass (autocast); master weights are always float32."""

    # Housekeeping
    checkpoint_every: int = Field(default=10, ge=1)
    """Steps between checkpoints; the last step always writes one. Experience is acknowledged after it."""
    keep_checkpoints: int = Field(default=2, ge=1)
    evaluate_every: int = Field(default=10, ge=1)
    """Steps between held-out evaluations on `evaluate_prompts` rows; the first and last use all rows."""
    evaluate_prompts: int = Field(default=256, ge=1)
    success_reward: float = 1.0
    """A held-out completion with at least this reward counts as solved."""
    log_completions_every: int = Field(default=10, ge=1)
    rollout_timeout: float = Field(default=600.0, gt=0)
    """Seconds without any arriving group after which the learner gives up with an error."""

    @model_validator(mode="after")
    def _batch_divides(self) -> "LearnerConfig":
        sequences = self.groups_per_step * self.completions_per_prompt
        if sequences % (self.minibatches * self.ranks):
            raise ValueError(
                f"groups_per_step x completions_per_prompt = {sequences} must be a multiple of "
                f"minibatches x ranks = {self.minibatches * self.ranks}"
            )
        return self


class LearnerSettings(Settings):
    learner: LearnerConfig
