"""The numbers of the algorithm, as `services/learner/ppo.py` takes them; docs/ppo.md has their equations."""

from typing import Literal, Self

from pydantic import Field, model_validator

from shared.config import Table


class AdaptiveKLConfig(Table):
    target: float = Field(default=6.0, gt=0)
    """Distance to the reference to keep, in nats a completion."""
    horizon: float = Field(default=10_000, gt=0)
    """Completions over which the coefficient changes by the clipped error."""
    clip: float = Field(default=0.2, gt=0)
    """Largest relative error that one batch counts with."""


class CorrectionConfig(Table):
    """What makes up for completions of older policies, and with `fresh` for the engine's own arithmetic."""

    weight: Literal["none", "token", "sequence", "geometric"] = "token"
    """Whose importance ratio weighs a token's policy loss: its own, its completion's, or the mean over it."""
    weight_cap: float = Field(default=2.0, gt=0)
    mask: Literal["none", "token", "sequence", "geometric"] = "none"
    """What lies outside `[mask_low, mask_high]` by the ratio of this level gives no policy gradient."""
    mask_low: float = Field(default=0.5, gt=0)
    mask_high: float = Field(default=2.0, gt=0)
    fresh: bool = False
    """Also correct completions of the newest policy, for a difference between engine and learner."""
    proximal: Literal["recompute", "loglinear"] = "recompute"
    """How the logprobs at the start of the update are had: by a forward pass, or approximated without one."""

    @model_validator(mode="after")
    def _corrects(self) -> Self:
        if self.mask_low >= self.mask_high:
            raise ValueError(
                f"mask_low = {self.mask_low} must be below mask_high = {self.mask_high}: nothing lies between"
            )
        if self.fresh and self.proximal == "loglinear":
            raise ValueError(
                "fresh = true does nothing with proximal = 'loglinear', which takes the engine's logprobs "
                "for those of a fresh completion: use 'recompute'"
            )
        return self


class AlgorithmConfig(Table):
    temperature: float = Field(default=1.0, gt=0, le=2)
    """Completions are sampled with it, and their log-probabilities are taken under it."""
    epochs: int = Field(default=2, ge=1)
    """Passes over each batch."""
    minibatches: int = Field(default=4, ge=1)
    """Optimizer steps per pass."""
    update_steps: int | None = Field(default=None, ge=1)
    """Optimizer steps per batch where they are not `epochs` whole passes; each pass is shuffled anew."""
    micro_batch_tokens: int = Field(default=8192, ge=1)
    """Tokens in one forward and backward pass of one rank; bounds memory, never changes the result."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Type of the forward and backward pass (autocast); master weights are always float32."""

    # Rewards
    reward_scale: float = Field(default=1.0, gt=0)
    """Rewards are multiplied by this before training; logs and reports show them unscaled."""
    score_normalization: Literal["none", "scale", "normalize"] = "none"
    """Divide scores by the running standard deviation of all so far; `normalize` also centres them."""
    reward_clip: float | None = Field(default=None, gt=0)
    """Scores are cut to plus and minus this, after scaling and normalisation."""
    missing_eos_penalty: float = Field(default=0.0, ge=0)
    """Taken from the score of a completion that its length limit cut."""
    score_placement: Literal["last", "every"] = "last"
    """The score goes to the last completion token, or to every one, as in ColossalChat: not for estimators
    that compare completions."""
    whiten_rewards: bool = False
    """Scale the shaped rewards to variance 1; their mean stays."""

    # Distance to the reference
    kl_coef: float = Field(default=0.05, ge=0)
    """Weight of the KL penalty against the reference policy."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k1"
    kl_in: Literal["reward", "loss"] = "reward"
    """Where the penalty enters. In the loss k1 has no gradient on average, so k2 or k3 must be used there."""
    adaptive_kl: AdaptiveKLConfig | None = None
    """Adapt `kl_coef`, which is then only its first value."""

    # Advantages
    advantage_estimator: Literal[
        "gae", "grpo", "grpo_without_std", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"
    ] = "gae"
    """All but `gae` train without a critic."""
    gamma: float = Field(default=1.0, gt=0, le=1)
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    truncation: Literal["terminal", "bootstrap"] = "terminal"
    """What follows a completion cut by its length limit: nothing, or what the critic expects."""
    whiten_advantages: bool | None = None
    """To mean 0 and variance 1 over the whole batch; by default for `gae` and `reinforce_plus_plus...`."""
    whiten_shift_mean: bool = True
    """Whitened advantages have mean 0; false keeps their mean."""

    # Policy loss
    clip_low: float = Field(default=0.2, gt=0)
    clip_high: float = Field(default=0.2, gt=0)
    dual_clip: float | None = Field(default=None, gt=1)
    """Bound on the loss of a token of negative advantage, in multiples of that advantage."""
    ratio_clamp: float | None = Field(default=None, gt=1)
    """Ratios above are cut before anything else."""
    ratio_threshold: float | None = Field(default=None, gt=1)
    """The policy does not step on a minibatch whose mean ratio is above; a critic of its own does."""
    ratio_level: Literal["token", "sequence"] = "token"
    """`sequence`: one ratio for each completion, as in GSPO."""
    loss_mean: Literal["token", "sequence"] = "token"
    """Mean over all tokens of the minibatch, or over the means of its completions."""
    target_kl: float | None = Field(default=None, gt=0)
    """End the update when `policy/approxkl` of an optimizer step is above one and a half times this."""
    entropy_coef: float = Field(default=0.0, ge=0)
    correction: CorrectionConfig = CorrectionConfig()
    ptx_coef: float = Field(default=0.0, ge=0, lt=1)
    """Share of the supervised loss on `learner.ptx` in the policy's; the PPO loss has the rest."""

    # Value loss
    value_clip: float | None = Field(default=0.2, gt=0)
    vf_coef: float = Field(default=0.1, gt=0)
    critic_warmup_steps: int = Field(default=0, ge=0)
    """First PPO steps, in which only the critic learns."""

    max_grad_norm: float = Field(default=1.0, gt=0)

    @property
    def has_critic(self) -> bool:
        return self.advantage_estimator == "gae"

    @property
    def whitens_advantages(self) -> bool:
        if self.whiten_advantages is None:
            return self.has_critic or self.advantage_estimator.startswith("reinforce")
        return self.whiten_advantages

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if not self.has_critic and self.critic_warmup_steps:
            raise ValueError(
                f"critic_warmup_steps = {self.critic_warmup_steps}, but advantage_estimator = "
                f"{self.advantage_estimator!r} trains no critic: set it to 0"
            )
        if not self.has_critic and self.truncation == "bootstrap":
            raise ValueError(
                f"truncation = 'bootstrap' needs a critic, and advantage_estimator = "
                f"{self.advantage_estimator!r} trains none: use 'gae'"
            )
        if self.score_placement == "every" and not (
            self.has_critic or self.advantage_estimator == "reinforce_plus_plus"
        ):
            raise ValueError(
                f"score_placement = 'every' makes a completion worth its score times its length, and "
                f"advantage_estimator = {self.advantage_estimator!r} compares completions by that: use 'last'"
            )
        if self.kl_in == "loss" and self.kl_coef and self.kl_estimator == "k1":
            raise ValueError(
                "kl_in = 'loss' with kl_estimator = 'k1', whose gradient is 0 on average, charges nothing: "
                "use 'k2' or 'k3'"
            )
        if self.adaptive_kl and not self.kl_coef:
            raise ValueError("adaptive_kl multiplies kl_coef, which is 0: give it a first value such as 0.2")
        return self
