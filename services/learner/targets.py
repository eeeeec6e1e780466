"""Before the update: what the models say about a batch, and the advantages and returns that follow.

Shapes: `B` completions, `T` completion tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from services.learner.algorithm.advantages import generalized_advantages, whiten
from services.learner.algorithm.kl import kl_estimate, kl_penalty, score_on_last_token
from services.learner.config.algorithm import AlgorithmConfig
from services.learner.data.batch import ExperienceBatch, micro_batches
from services.learner.distributed import World
from services.learner.models.actor_critic import ActorCritic
from services.learner.models.scores import completion_values, score_completions


@dataclass(frozen=True)
class Evaluation:
    """What the models say about the batch before the update. Zero outside the completion mask. [B, T] each"""

    old_logprobs: Tensor
    ref_logprobs: Tensor
    old_values: Tensor


@dataclass(frozen=True)
class Targets:
    """What the losses need to know about each token. [B, T] each"""

    old_logprobs: Tensor
    old_values: Tensor
    kl: Tensor
    """Estimated distance to the reference, as the rewards were charged for it."""
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

    The old logprobs are always computed here and never taken from the engine, whose arithmetic is not ours.
    """

    def scores(part: ExperienceBatch) -> Tensor:
        old = score_completions(models.policy, part, config.temperature, config.precision)
        ref = score_completions(models.reference, part, config.temperature, config.precision)
        return torch.stack(
            [old.logprobs, ref.logprobs, completion_values(models.critic, part, config.precision)]
        )

    return Evaluation(*_over_ranks(models.world, batch, len(batch), config.micro_batch_tokens, scores, 3))


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


def make_targets(
    batch: ExperienceBatch, evaluation: Evaluation, config: AlgorithmConfig, policy_version: int
) -> Targets:
    """KL-shaped rewards with the score on the last token, then advantages and returns.

    Where a completion has a token of an older policy, its policy loss is weighted by how much likelier the
    policy of now finds each token than the engine did, up to a cap (decoupled PPO, Hilton et al. 2022; the
    truncation as in IMPALA, Espeholt et al. 2018). The clip then measures distance from the policy of now.
    """
    mask = batch.completion_mask
    kl = kl_estimate(evaluation.old_logprobs, evaluation.ref_logprobs, config.kl_estimator)
    rewards = kl_penalty(kl, mask, config.kl_coef)
    rewards += score_on_last_token(batch.rewards * config.reward_scale, mask)
    advantages = generalized_advantages(rewards, evaluation.old_values, mask, config.gamma, config.gae_lambda)
    returns = advantages + evaluation.old_values
    if config.whiten_advantages:
        advantages = whiten(advantages, mask)
    stale = (batch.versions < policy_version)[:, None]
    importance = (evaluation.old_logprobs - batch.rollout_logprobs).exp().clamp(max=config.importance_cap)
    return Targets(
        old_logprobs=evaluation.old_logprobs,
        old_values=evaluation.old_values,
        kl=kl,
        advantages=advantages,
        returns=returns,
        weights=torch.where(stale & mask, importance, 1.0),
    )
