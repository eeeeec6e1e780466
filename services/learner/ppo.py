"""One PPO update, start to end.

Every rank holds the whole batch and every per-token number about it; what is shared out is the passes through
the models. So advantages, whitening and metrics are the same on every rank without another word between them.

Shapes: `B` completions, `T` completion tokens.
"""

import logging
import time
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from services.learner.algorithm.losses import policy_loss, value_loss
from services.learner.config.algorithm import AlgorithmConfig
from services.learner.data.batch import ExperienceBatch, micro_batches, minibatches
from services.learner.distributed import synchronise_gradients
from services.learner.metrics import StepSums, batch_metrics, logprob_gap, step_metrics
from services.learner.models.actor_critic import ActorCritic
from services.learner.models.scores import completion_values, score_completions
from services.learner.targets import Targets, evaluate, exact_logprobs, make_targets

_GAP_ROWS = 32
"""Completions on which engine and learner are compared when the learner does not compute in float32."""

log = logging.getLogger("rollstream.ppo")


def update(
    models: ActorCritic, batch: ExperienceBatch, config: AlgorithmConfig, policy_version: int, seed: int
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
    evaluation = evaluate(models, batch, config)
    targets = make_targets(batch, evaluation, config, policy_version)
    measured = evaluation.old_logprobs
    if config.precision != "float32":  # whose rounding would hide the engine's own distance
        measured = exact_logprobs(models, batch, config, rows=min(_GAP_ROWS, len(batch)))
    evaluated = time.monotonic()

    generator = torch.Generator().manual_seed(seed)
    steps = [
        train_minibatch(models, batch, targets, rows, config)
        for _ in range(config.epochs)
        for rows in minibatches(len(batch), config.minibatches, generator)
    ]
    metrics = batch_metrics(batch, evaluation, targets, config, policy_version)
    metrics |= logprob_gap(batch, measured)
    metrics |= step_metrics(steps, models.world, config.minibatches)
    finished = time.monotonic()
    return metrics | {
        "time/evaluate": evaluated - started,
        "time/optimize": finished - evaluated,
        "time/update": finished - started,
    }


def train_minibatch(
    models: ActorCritic,
    batch: ExperienceBatch,
    targets: Targets,
    rows: Sequence[int],
    config: AlgorithmConfig,
) -> StepSums:
    """One optimizer step of policy and critic on these rows of the batch.

    Every loss is a sum over this rank's tokens divided by the tokens of the whole minibatch.
    """
    world = models.world
    tokens = int(batch.completion_mask[list(rows)].sum())
    # FSDP averages gradients over the ranks, where the shares of one mean have to be added up.
    share = world.size / max(tokens, 1)
    sums = StepSums.zero(tokens, world.device)
    cut = micro_batches(batch.lengths.tolist(), rows, config.micro_batch_tokens, world.size)
    for index, shares in enumerate(cut):
        part = batch.rows(shares[world.rank])
        mask = part.completion_mask
        target = targets.rows(shares[world.rank], mask.shape[1])
        for model in (models.policy, models.critic):
            synchronise_gradients(model, now=index == len(cut) - 1)

        scores = score_completions(
            models.policy,
            part,
            config.temperature,
            config.precision,
            train_entropy=config.entropy_coef != 0,
        )
        policy = policy_loss(
            scores.logprobs,
            target.old_logprobs,
            target.advantages,
            mask,
            config.clip_low,
            config.clip_high,
            target.weights,
        )
        entropy = scores.entropy.sum()
        ((policy.loss - config.entropy_coef * entropy) * share).backward()

        values = completion_values(models.critic, part, config.precision)
        value = value_loss(values, target.old_values, target.returns, mask, config.value_clip)
        (config.vf_coef * value.loss * share).backward()
        sums.add(policy, value, entropy)
    _step(models, sums, config.max_grad_norm)
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
