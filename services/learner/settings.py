"""The numbers of the algorithm, as the update takes them; `config.py` has their defaults and meaning."""

from dataclasses import dataclass

from services.learner.kl import KLEstimator
from services.learner.models import Precision


@dataclass(frozen=True, kw_only=True)
class PPOSettings:
    """The numbers of the algorithm."""

    clip_low: float
    clip_high: float
    value_clip: float
    vf_coef: float
    kl_coef: float
    kl_estimator: KLEstimator
    entropy_coef: float
    gamma: float
    gae_lambda: float
    whiten_advantages: bool
    reward_scale: float
    """Factor on every reward before PPO sees it."""
    importance_cap: float
    """Upper bound of the weight that corrects stale completions."""
    epochs: int
    minibatches: int
    """Optimizer steps per epoch."""
    micro_batch_tokens: int
    """Padded tokens in one forward pass of one rank."""
    max_grad_norm: float
    temperature: float
    """The one that completions were sampled with."""
    precision: Precision
