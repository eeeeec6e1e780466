"""One PPO update, start to end.

Every rank holds the whole batch and every per-token number about it; what is shared out is the passes through
the models. So advantages, whitening and metrics are the same on every rank without another word between them.

Shapes: `B` completions, `T` completion tokens.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from transformers import PreTrainedModel

from services.learner.advantages import generalized_advantages, whiten
from services.learner.batch import ExperienceBatch, micro_batches, minibatches
from services.learner.distributed import World, synchronise_gradients
from services.learner.kl import KLEstimator, kl_estimate, kl_penalty, score_on_last_token
from services.learner.losses import policy_loss, value_loss
from services.learner.metrics import StepSums, batch_metrics, step_metrics
from services.learner.models import Critic, Precision, completion_values, score_completions

log = logging.getLogger(__name__)


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


@dataclass(frozen=True)
class ActorCritic:
    """The models of PPO, sharded over `world`, and what trains them."""

    policy: PreTrainedModel
    reference: PreTrainedModel
    critic: Critic
    policy_optimizer: torch.optim.Optimizer
    critic_optimizer: torch.optim.Optimizer
    world: World


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


def build_optimizer(
    model: torch.nn.Module, learning_rate: float, weight_decay: float
) -> torch.optim.Optimizer:
    """AdamW over a model that `distributed.shard` has already placed."""
    return torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=weight_decay, fused=True)


def update(
    models: ActorCritic, batch: ExperienceBatch, settings: PPOSettings, policy_version: int, seed: int
) -> dict[str, float]:
    """Train policy and critic on one batch of experience and report how it went.

    Args:
        batch: the whole batch, the same on every rank.
        policy_version: the version that the policy has now, before the update.
        seed: of the shuffles into minibatches; the same on every rank, another for each update.

    Returns:
        Metrics by name, the same on every rank. Of TRL's 17 names all but `eps`, `lr` and `episode`, which
        belong to the run and not to an update.
    """
    started = time.monotonic()
    batch = batch.to(models.world.device)
    evaluation = evaluate(models, batch, settings)
    targets = make_targets(batch, evaluation, settings, policy_version)
    evaluated = time.monotonic()

    generator = torch.Generator().manual_seed(seed)
    steps = [
        train_minibatch(models, batch, targets, rows, settings)
        for _ in range(settings.epochs)
        for rows in minibatches(len(batch), settings.minibatches, generator)
    ]
    metrics = batch_metrics(batch, evaluation, targets, settings, policy_version)
    metrics |= step_metrics(steps, models.world, settings.minibatches)
    finished = time.monotonic()
    return metrics | {
        "time/evaluate": evaluated - started,
        "time/optimize": finished - evaluated,
        "time/update": finished - started,
    }


@torch.no_grad()
def evaluate(models: ActorCritic, batch: ExperienceBatch, settings: PPOSettings) -> Evaluation:
    """Old and reference logprobs and values of every completion, on every rank.

    The old logprobs are always computed here and never taken from the engine, whose arithmetic is not ours.
    """
    world, lengths = models.world, batch.lengths.tolist()
    gathered = torch.zeros(3, *batch.completion_mask.shape, device=world.device)
    for shares in micro_batches(lengths, range(len(batch)), settings.micro_batch_tokens, world.size):
        rows = shares[world.rank]
        part = batch.rows(rows)
        old = score_completions(models.policy, part, settings.temperature, settings.precision)
        ref = score_completions(models.reference, part, settings.temperature, settings.precision)
        values = completion_values(models.critic, part, settings.precision)
        if rows:
            width = part.completion_mask.shape[1]
            gathered[:, rows, :width] = torch.stack([old.logprobs, ref.logprobs, values])
    return Evaluation(*world.all_reduce_sum(gathered))


def make_targets(
    batch: ExperienceBatch, evaluation: Evaluation, settings: PPOSettings, policy_version: int
) -> Targets:
    """KL-shaped rewards with the score on the last token, then advantages and returns.

    Where a completion has a token of an older policy, its policy loss is weighted by how much likelier the
    policy of now finds each token than the engine did, up to a cap (decoupled PPO, Hilton et al. 2022; the
    truncation as in IMPALA, Espeholt et al. 2018). The clip then measures distance from the policy of now.
    """
    mask = batch.completion_mask
    kl = kl_estimate(evaluation.old_logprobs, evaluation.ref_logprobs, settings.kl_estimator)
    rewards = kl_penalty(kl, mask, settings.kl_coef)
    rewards += score_on_last_token(batch.rewards * settings.reward_scale, mask)
    advantages = generalized_advantages(
        rewards, evaluation.old_values, mask, settings.gamma, settings.gae_lambda
    )
    returns = advantages + evaluation.old_values
    if settings.whiten_advantages:
        advantages = whiten(advantages, mask)
    stale = (batch.versions < policy_version)[:, None]
    importance = (evaluation.old_logprobs - batch.rollout_logprobs).exp().clamp(max=settings.importance_cap)
    return Targets(
        old_logprobs=evaluation.old_logprobs,
        old_values=evaluation.old_values,
        kl=kl,
        advantages=advantages,
        returns=returns,
        weights=torch.where(stale & mask, importance, 1.0),
    )


def train_minibatch(
    models: ActorCritic,
    batch: ExperienceBatch,
    targets: Targets,
    rows: Sequence[int],
    settings: PPOSettings,
) -> StepSums:
    """One optimizer step of policy and critic on these rows of the batch.

    Every loss is a sum over this rank's tokens divided by the tokens of the whole minibatch.
    """
    world = models.world
    tokens = int(batch.completion_mask[list(rows)].sum())
    # FSDP averages gradients over the ranks, where the shares of one mean have to be added up.
    share = world.size / max(tokens, 1)
    sums = StepSums.zero(tokens, world.device)
    cut = micro_batches(batch.lengths.tolist(), rows, settings.micro_batch_tokens, world.size)
    for index, shares in enumerate(cut):
        part = batch.rows(shares[world.rank])
        mask = part.completion_mask
        target = targets.rows(shares[world.rank], mask.shape[1])
        for model in (models.policy, models.critic):
            synchronise_gradients(model, now=index == len(cut) - 1)

        scores = score_completions(
            models.policy,
            part,
            settings.temperature,
            settings.precision,
            train_entropy=settings.entropy_coef != 0,
        )
        policy = policy_loss(
            scores.logprobs,
            target.old_logprobs,
            target.advantages,
            mask,
            settings.clip_low,
            settings.clip_high,
            target.weights,
        )
        entropy = scores.entropy.sum()
        ((policy.loss - settings.entropy_coef * entropy) * share).backward()

        values = completion_values(models.critic, part, settings.precision)
        value = value_loss(values, target.old_values, target.returns, mask, settings.value_clip)
        (settings.vf_coef * value.loss * share).backward()
        sums.add(policy, value, entropy)
    _step(models, sums, settings.max_grad_norm)
    return sums


def _step(models: ActorCritic, sums: StepSums, max_grad_norm: float) -> None:
    """Clip each model's gradient and step; if either is not finite, skip both and count it.

    The norms are taken over all ranks, so the ranks agree.
    """
    sums.policy_grad_norm = _gradient_norm(models.policy)
    sums.critic_grad_norm = _gradient_norm(models.critic)
    sums.skipped = not bool(torch.isfinite(sums.policy_grad_norm) & torch.isfinite(sums.critic_grad_norm))
    if sums.skipped:
        log.warning(
            "optimizer step skipped: gradient norm of the policy %s, of the critic %s",
            float(sums.policy_grad_norm),
            float(sums.critic_grad_norm),
        )
    else:
        clip_grads_with_norm_(models.policy.parameters(), max_grad_norm, sums.policy_grad_norm)
        clip_grads_with_norm_(models.critic.parameters(), max_grad_norm, sums.critic_grad_norm)
        models.policy_optimizer.step()
        models.critic_optimizer.step()
    models.policy_optimizer.zero_grad()
    models.critic_optimizer.zero_grad()


def _gradient_norm(model: torch.nn.Module) -> Tensor:
    """Norm over all parameters and all ranks, the same on every rank."""
    norm = get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
