"""Before the update: what the models say about a batch, and the advantages and returns that follow.

Shapes: `B` completions, `T` completion tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from services.learner.algorithm.advantages import CRITIC_FREE, generalized_advantages, whiten
from services.learner.algorithm.correction import importance_weights, inside_band
from services.learner.algorithm.kl import kl_estimate, kl_penalty
from services.learner.algorithm.rewards import RunningMoments, normalised, place_scores
from services.learner.config.algorithm import AlgorithmConfig, CorrectionConfig
from services.learner.data.batch import ExperienceBatch, micro_batches
from services.learner.distributed import World
from services.learner.models.actor_critic import ActorCritic
from services.learner.models.scores import completion_values, final_values, score_completions


@dataclass(frozen=True)
class Evaluation:
    """What the models say about the batch before the update. Zero outside the completion mask."""

    old_logprobs: Tensor
    """[B, T]"""
    ref_logprobs: Tensor
    """The old ones without a reference policy. [B, T]"""
    old_values: Tensor
    """0 without a critic. [B, T]"""
    final_values: Tensor
    """Value of the state after a completion that was cut, where truncation is bootstrapped; else 0. [B]"""


@dataclass(frozen=True)
class Targets:
    """What the losses need to know about each token. [B, T] each"""

    old_logprobs: Tensor
    ref_logprobs: Tensor
    old_values: Tensor
    kl: Tensor
    """Estimated distance to the reference."""
    advantages: Tensor
    returns: Tensor
    weights: Tensor
    """Factor on the policy loss: 1 where the completion is fresh."""

    def rows(self, indices: Sequence[int], width: int) -> "Targets":
        """What belongs to `ExperienceBatch.rows(indices)`, whose completions are `width` tokens wide."""
        index = list(indices) or [0]
        return Targets(**{f.name: getattr(self, f.name)[index, :width] for f in fields(self)})


@torch.no_grad()
def evaluate(models: ActorCritic, batch: ExperienceBatch, config: AlgorithmConfig) -> Evaluation:
    """Old and reference logprobs and values of every completion, on every rank.

    The old logprobs are computed here and not taken from the engine, whose arithmetic is not ours; but for
    the log-linear approximation, which saves that pass.
    """
    reading = (config.temperature, config.precision)

    def scores(part: ExperienceBatch) -> Tensor:
        if config.correction.proximal == "recompute":
            of_policy, values = models.scores_and_values(part, *reading)
            old = of_policy.logprobs
        else:
            old = part.rollout_logprobs
            values = None
            if models.critic is not None:
                values = completion_values(models.critic, part, config.precision)
        ref = models.reference_logprobs(part, *reading)
        final = torch.zeros_like(old)
        if models.critic is not None and config.truncation == "bootstrap":
            final += (final_values(models.critic, part, config.precision) * ~part.stopped)[:, None]
        return torch.stack(
            [old, old if ref is None else ref, torch.zeros_like(old) if values is None else values, final]
        )

    old, ref, values, final = _over_ranks(
        models.world, batch, len(batch), config.micro_batch_tokens, scores, 4
    )
    return Evaluation(old, ref, values, final[:, 0])


@torch.no_grad()
def exact_logprobs(models: ActorCritic, batch: ExperienceBatch, config: AlgorithmConfig, rows: int) -> Tensor:
    """Logprobs of the first `rows` completions in float32, to measure the engine against. [rows, T]"""

    def scores(part: ExperienceBatch) -> Tensor:
        return score_completions(models.policy, part, config.temperature, "float32").logprobs[None]

    return _over_ranks(models.world, batch, rows, config.micro_batch_tokens, scores, 1)[0]


def _over_ranks(
    world: World,
    batch: ExperienceBatch,
    rows: int,
    max_tokens: int,
    scores: Callable[[ExperienceBatch], Tensor],
    count: int,
) -> Tensor:
    """`count` numbers for each token of the first `rows` completions: each rank computes some, all get all.

    Args:
        scores: gives them for a part of the batch. [count, B', T']

    Returns:
        [count, rows, T]
    """
    gathered = torch.zeros(count, rows, batch.completion_mask.shape[1], device=world.device)
    for shares in micro_batches(batch.lengths.tolist(), range(rows), max_tokens, world.size):
        own = shares[world.rank]
        part = scores(batch.rows(own))
        if own:
            gathered[:, own, : part.shape[2]] = part
    return world.all_reduce_sum(gathered)


def final_scores(
    batch: ExperienceBatch, config: AlgorithmConfig, moments: RunningMoments
) -> tuple[Tensor, RunningMoments]:
    """The scores that PPO sees: scaled, normalised, clipped, and lowered where a completion was cut. [B]

    Also the moments that the next batch is normalised by; this batch counts in its own.
    """
    scores = batch.rewards * config.reward_scale
    moments = moments.including(scores)
    if config.score_normalization != "none":
        scores = normalised(scores, moments, shift_mean=config.score_normalization == "normalize")
    if config.reward_clip is not None:
        scores = scores.clamp(-config.reward_clip, config.reward_clip)
    return scores - config.missing_eos_penalty * ~batch.stopped, moments


def step_scores(batch: ExperienceBatch, config: AlgorithmConfig, moments: RunningMoments) -> Tensor:
    """What of the scores is earned before the end, scaled as they are; shifts and clips come last. [B, T]

    Args:
        moments: those that the scores were normalised by.
    """
    scale = config.reward_scale
    if config.score_normalization != "none":
        scale /= moments.divisor
    return batch.step_rewards * scale


def make_targets(
    batch: ExperienceBatch,
    evaluation: Evaluation,
    scores: Tensor,
    config: AlgorithmConfig,
    kl_coef: float,
    policy_version: int,
    earned: Tensor | None = None,
) -> Targets:
    """Token rewards out of scores and KL, then advantages and returns, and the weights of stale completions.

    Args:
        scores: from `final_scores`. [B]
        kl_coef: the coefficient of now, which may have adapted away from the configured one.
        earned: from `step_scores`; without it all is earned at the end. [B, T]
    """
    mask = batch.completion_mask
    kl = kl_estimate(evaluation.old_logprobs, evaluation.ref_logprobs, config.kl_estimator)
    earned = torch.zeros_like(kl) if earned is None else earned * mask
    rewards = earned + place_scores(scores - earned.sum(dim=1), mask, config.score_placement)
    if config.kl_in == "reward":
        rewards = rewards + kl_penalty(kl, mask, kl_coef)
    if config.whiten_rewards:
        rewards = whiten(rewards, mask, shift_mean=False)
    if config.has_critic:
        advantages = generalized_advantages(
            rewards, evaluation.old_values, mask, config.gamma, config.gae_lambda, evaluation.final_values
        )
    else:
        advantages = CRITIC_FREE[config.advantage_estimator](rewards, mask, batch.groups, config.gamma)
    returns = advantages + evaluation.old_values
    if config.whitens_advantages:
        advantages = whiten(advantages, mask, config.whiten_shift_mean)
    return Targets(
        old_logprobs=evaluation.old_logprobs,
        ref_logprobs=evaluation.ref_logprobs,
        old_values=evaluation.old_values,
        kl=kl,
        advantages=advantages,
        returns=returns,
        weights=correction_weights(batch, evaluation.old_logprobs, config.correction, policy_version),
    )


def correction_weights(
    batch: ExperienceBatch, old_logprobs: Tensor, config: CorrectionConfig, policy_version: int
) -> Tensor:
    """Factors on the policy loss of each token, 1 on fresh completions unless they are to be corrected too.

    A completion counts as stale with its oldest token. [B, T]
    """
    mask = batch.completion_mask
    log_ratio = old_logprobs - batch.rollout_logprobs
    weights = importance_weights(log_ratio, mask, config.weight, config.weight_cap)
    weights = weights * inside_band(log_ratio, mask, config.mask, config.mask_low, config.mask_high)
    if config.fresh:
        return weights
    return torch.where((batch.versions < policy_version)[:, None], weights, 1.0)
