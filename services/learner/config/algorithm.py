"""The numbers of the algorithm, as `services/learner/ppo.py` takes them."""

from typing import Literal

from pydantic import Field

from shared.config import Table


class AlgorithmConfig(Table):
    temperature: float = Field(default=1.0, gt=0)
    """Completions are sampled with it, and their log-probabilities are taken under it."""
    epochs: int = Field(default=2, ge=1)
    """Passes over each batch."""
    minibatches: int = Field(default=4, ge=1)
    """Optimizer steps per pass."""
    micro_batch_tokens: int = Field(default=8192, ge=1)
    """Padded tokens in one forward and backward pass of one rank; bounds memory, never changes the result."""
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
    """Upper bound of the engine-to-learner importance weight that corrects stale completions."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    precision: Literal["float32", "bfloat16"] = "float32"
    """Type of the forward and backward pass (autocast); master weights are always float32."""
