"""What one PPO update reports. The names that TRL's PPO trainer logs mean here what they mean there.

Where TRL's own numbers count padding, these count completion tokens only.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from services.learner.algorithm.losses import PolicyLoss, ValueLoss
from services.learner.config.algorithm import AlgorithmConfig
from services.learner.data.batch import ExperienceBatch
from services.learner.distributed import World
from services.learner.targets import Evaluation, Targets


@dataclass
class StepSums:
    """What one optimizer step adds up over this rank's tokens."""

    tokens: int
    """Completion tokens of the whole minibatch, on all ranks: what the sums are divided by."""
    sums: Tensor
    """Policy loss, value loss, clipped (policy), clipped (value), approximate KL, entropy, ratio. [7]"""
    max_ratio: Tensor
    policy_grad_norm: Tensor
    critic_grad_norm: Tensor
    skipped: bool = False

    @staticmethod
    def zero(tokens: int, device: torch.device) -> "StepSums":
        nothing = torch.zeros((), device=device)
        return StepSums(tokens, torch.zeros(7, dtype=torch.float64, device=device), nothing, nothing, nothing)

    def add(self, policy: PolicyLoss, value: ValueLoss, entropy: Tensor) -> None:
        """Count one micro-batch."""
        parts = (
            policy.loss,
            value.loss,
            policy.clipped,
            value.clipped,
            policy.approx_kl,
            entropy,
            policy.ratio,
        )
        self.sums += torch.stack([part.detach().double() for part in parts])
        self.max_ratio = torch.maximum(self.max_ratio, policy.max_ratio)


def step_metrics(steps: Sequence[StepSums], world: World, first_epoch: int) -> dict[str, float]:
    """Means over the optimizer steps of an update, the same on every rank.

    `val/ratio_first` is the mean ratio of the first step. The policy is still the old one then, so anything
    but 1 means that the two passes through it disagree.

    Args:
        first_epoch: how many of the steps made the first epoch.
    """
    sums = world.all_reduce_sum(torch.stack([step.sums for step in steps]))
    max_ratio = world.all_reduce_max(torch.stack([step.max_ratio for step in steps])).max()
    tokens = torch.tensor([max(step.tokens, 1) for step in steps], device=world.device)
    means = sums / tokens[:, None]  # [steps, 7]
    policy, value, policy_clipped, value_clipped, approx_kl, entropy, ratio = means.mean(dim=0).tolist()
    ratios = means[:, 6]
    return {
        "loss/policy_avg": policy,
        "loss/value_avg": value,
        "policy/clipfrac_avg": policy_clipped,
        "val/clipfrac_avg": value_clipped,
        "policy/approxkl_avg": approx_kl,
        "policy/entropy_avg": entropy,
        "val/ratio": ratio,
        "val/ratio_var": float(ratios.var()) if len(steps) > 1 else 0.0,
        "val/ratio_first": float(ratios[0]),
        "val/ratio_first_epoch": float(sums[:first_epoch, 6].sum() / tokens[:first_epoch].sum()),
        "val/ratio_max": float(max_ratio),
        "grad_norm/policy": float(torch.stack([step.policy_grad_norm for step in steps]).mean()),
        "grad_norm/critic": float(torch.stack([step.critic_grad_norm for step in steps]).mean()),
        "steps/optimizer": float(len(steps)),
        "steps/skipped": float(sum(step.skipped for step in steps)),
    }


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
    config: AlgorithmConfig,
    policy_version: int,
) -> dict[str, float]:
    """What the batch was like before the update.

    `objective/kl` and the like are means over completions of sums over tokens.
    """
    mask = batch.completion_mask
    completions = len(batch)
    kl = float(torch.where(mask, targets.kl, 0.0).sum()) / completions
    scores = float(batch.rewards.mean()) * config.reward_scale
    spread = float(targets.returns[mask].var(correction=0))
    error = float((targets.returns - evaluation.old_values)[mask].var(correction=0))
    staleness = (policy_version - batch.versions).float()
    return {
        "objective/kl": kl,
        "objective/entropy": -float(evaluation.old_logprobs.sum()) / completions,
        "objective/non_score_reward": -config.kl_coef * kl,
        "objective/rlhf_reward": scores - config.kl_coef * kl,
        "objective/scores": scores,
        "val/num_eos_tokens": float(batch.stopped.sum()),
        "val/explained_variance": 1 - error / spread if spread > 0 else 0.0,
        "reward/mean": float(batch.rewards.mean()),
        "reward/std": float(batch.rewards.std(correction=0)),
        "completions/mean_length": float(mask.sum()) / completions,
        "completions/cut_fraction": float((~batch.stopped).float().mean()),
        "staleness/mean": float(staleness.mean()),
        "staleness/max": float(staleness.max()),
        "tokens/completion": float(mask.sum()),
        "tokens/trained": float(batch.lengths.sum()) * config.epochs,
    }
