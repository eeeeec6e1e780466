"""What one PPO update reports. The names that TRL's PPO trainer logs mean here what they mean there.

Where TRL's own numbers count padding, these count completion tokens only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from services.learner.algorithm.correction import effective_sample_share
from services.learner.config.algorithm import AlgorithmConfig
from services.learner.data.batch import ExperienceBatch
from services.learner.distributed import World
from services.learner.targets import Evaluation, Targets

PER_TOKEN = (
    "loss/policy_avg",
    "loss/value_avg",
    "policy/clipfrac_avg",
    "val/clipfrac_avg",
    "policy/approxkl_avg",
    "policy/entropy_avg",
    "val/ratio",
)
"""What an optimizer step adds up over tokens."""

_OF_POLICY = ("policy/", "val/ratio", "loss/policy", "grad_norm/policy")
"""What is not measured while only the critic learns."""

_OF_CRITIC = ("loss/value", "val/clipfrac")
"""What is not measured without a critic."""


@dataclass
class StepSums:
    """What one optimizer step adds up over this rank's tokens."""

    tokens: int
    """Completion tokens of the whole minibatch, on all ranks: what the sums are divided by."""
    sums: Tensor
    """In the order of `PER_TOKEN`. [7]"""
    max_ratio: Tensor
    grad_norms: dict[str, Tensor] = field(default_factory=dict)
    """Before clipping, by model."""
    ptx: Tensor | None = None
    """This rank's share of the mean supervised loss."""
    with_policy: bool = True
    """False while only the critic learns."""
    with_critic: bool = True
    skipped: bool = False
    """A gradient was not finite: nothing stepped."""
    held: bool = False
    """The policy did not step, having gone too far."""
    ends_update: bool = False
    """It went so far that the rest of the update is left out."""

    @staticmethod
    def zero(tokens: int, device: torch.device) -> "StepSums":
        sums = torch.zeros(len(PER_TOKEN), dtype=torch.float64, device=device)
        return StepSums(tokens, sums, max_ratio=torch.zeros((), device=device))

    def add(self, parts: Mapping[str, Tensor]) -> None:
        """Count sums over the tokens of one micro-batch."""
        for name, part in parts.items():
            self.sums[PER_TOKEN.index(name)] += part.detach().double()

    def means(self, world: World) -> dict[str, float]:
        """Over the tokens of the minibatch, the same on every rank; every rank must call it."""
        means = world.all_reduce_sum(self.sums.clone()) / self.tokens
        return dict(zip(PER_TOKEN, means.tolist(), strict=True))


def step_metrics(steps: Sequence[StepSums], world: World, first_epoch: int) -> dict[str, float]:
    """Means over the optimizer steps of an update, the same on every rank.

    `val/ratio_first` is the mean ratio of the first step. The policy is still the old one then, so anything
    but 1 means that the two passes through it disagree.

    Args:
        first_epoch: how many of the steps made the first epoch.
    """
    sums = world.all_reduce_sum(torch.stack([step.sums for step in steps]))
    max_ratio = world.all_reduce_max(torch.stack([step.max_ratio for step in steps])).max()
    tokens = torch.tensor([step.tokens for step in steps], device=world.device)
    means = sums / tokens[:, None]  # [steps, 7]
    ptx = [step.ptx for step in steps if step.ptx is not None]
    supervised = {"loss/ptx_avg": float(world.all_reduce_sum(torch.stack(ptx)).mean())} if ptx else {}
    column = PER_TOKEN.index("val/ratio")
    ratios, first = means[:, column], slice(first_epoch)
    metrics = dict(zip(PER_TOKEN, means.mean(dim=0).tolist(), strict=True)) | {
        **supervised,
        "val/ratio_var": float(ratios.var()) if len(steps) > 1 else 0.0,
        "val/ratio_first": float(ratios[0]),
        "val/ratio_first_epoch": float(sums[first, column].sum() / tokens[first].sum()),
        "val/ratio_max": float(max_ratio),
        **{
            f"grad_norm/{name}": float(torch.stack([step.grad_norms[name] for step in steps]).mean())
            for name in steps[0].grad_norms
        },
        "steps/optimizer": float(len(steps)),
        "steps/skipped": float(sum(step.skipped for step in steps)),
        "steps/held": float(sum(step.held for step in steps)),
    }
    of_policy, of_critic = steps[0].with_policy, steps[0].with_critic
    unmeasured = (() if of_policy else _OF_POLICY) + (() if of_critic else _OF_CRITIC)
    return {name: value for name, value in metrics.items() if not name.startswith(unmeasured)}


def logprob_gap(batch: ExperienceBatch, logprobs: Tensor) -> dict[str, float]:
    """How far the engine's logprobs are from the learner's on the first completions of a batch.

    Args:
        logprobs: the learner's, in float32, of as many completions as it has rows. [rows, T]
    """
    rows = len(logprobs)
    gap = (batch.rollout_logprobs[:rows] - logprobs).abs()[batch.completion_mask[:rows]]
    return {"logprob_gap/mean": float(gap.mean()), "logprob_gap/max": float(gap.max())}


def batch_metrics(
    batch: ExperienceBatch,
    evaluation: Evaluation,
    targets: Targets,
    scores: Tensor,
    config: AlgorithmConfig,
    kl_coef: float,
    policy_version: int,
) -> dict[str, float]:
    """What the batch was like before the update.

    `objective/kl` and the like are means over completions of sums over tokens.
    """
    mask = batch.completion_mask
    completions, lengths = len(batch), batch.completion_lengths
    kl = float(torch.where(mask, targets.kl, 0.0).sum()) / completions
    score = float(scores.mean())
    penalty = -kl_coef * kl if config.kl_in == "reward" else 0.0
    returns, advantages = targets.returns[mask], (targets.returns - evaluation.old_values)[mask]
    metrics = staleness_metrics(batch, policy_version)
    if config.correction.proximal == "recompute":
        metrics |= correction_metrics(batch, evaluation.old_logprobs, targets.weights, policy_version)
    if config.has_critic:
        metrics |= critic_metrics(returns, evaluation.old_values[mask])
    return metrics | {
        "objective/kl": kl,
        "objective/kl_coef": kl_coef,
        "objective/entropy": -float(evaluation.old_logprobs.sum()) / completions,
        "objective/non_score_reward": penalty,
        "objective/rlhf_reward": score + penalty,
        "objective/scores": score,
        "val/num_eos_tokens": float(batch.stopped.sum()),
        "advantages/mean": float(advantages.mean()),
        "advantages/std": float(advantages.std(correction=0)),
        "returns/mean": float(returns.mean()),
        "returns/std": float(returns.std(correction=0)),
        "reward/mean": float(batch.rewards.mean()),
        "reward/std": float(batch.rewards.std(correction=0)),
        "completions/mean_length": float(mask.sum()) / completions,
        "completions/min_length": float(lengths.min()),
        "completions/max_length": float(lengths.max()),
        "completions/stopped_fraction": float(batch.stopped.float().mean()),
        "completions/cut_fraction": float((~batch.stopped).float().mean()),
        "tokens/completion": float(mask.sum()),
        "tokens/evaluated": float(batch.lengths.sum()),
    }


def critic_metrics(returns: Tensor, values: Tensor) -> dict[str, float]:
    """How well the old values [N] foresaw the returns [N] of the completion tokens."""
    error, spread = returns - values, float(returns.var(correction=0))
    return {
        "val/explained_variance": 1 - float(error.var(correction=0)) / spread if spread > 0 else 0.0,
        "val/error": float(error.square().mean()),
        "values/mean": float(values.mean()),
    }


def staleness_metrics(batch: ExperienceBatch, policy_version: int) -> dict[str, float]:
    """How old the batch was."""
    of_token = (policy_version - batch.token_versions)[batch.completion_mask]
    of_completion = (policy_version - batch.versions).float()
    return {
        "staleness/mean": float(of_completion.mean()),
        "staleness/max": float(of_completion.max()),
        **{
            f"staleness/tokens_{age}": float((of_token == age).float().mean())
            for age in of_token.unique().tolist()
        },
    }


def correction_metrics(
    batch: ExperienceBatch, old_logprobs: Tensor, weights: Tensor, policy_version: int
) -> dict[str, float]:
    """How far what sampled the batch was from the policy at the start of the update, whose logprobs were
    computed and not approximated."""
    mask = batch.completion_mask
    log_ratio = (old_logprobs - batch.rollout_logprobs)[mask]
    of_token = (policy_version - batch.token_versions)[mask]
    return {
        "correction/mismatch_kl": float((torch.expm1(log_ratio) - log_ratio).mean()),
        "correction/effective_sample_share": effective_sample_share(weights, mask),
        "correction/masked_fraction": float((weights[mask] == 0).float().mean()),
        **{
            f"correction/ratio_{age}": float(log_ratio[of_token == age].exp().mean())
            for age in of_token.unique().tolist()
        },
    }
