"""One optimizer step of policy and critic on one minibatch.

Every loss is a sum over this rank's tokens divided by a count over the whole minibatch, on all ranks.
"""

import logging
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from services.learner.algorithm.correction import loglinear_proximal
from services.learner.algorithm.kl import kl_estimate
from services.learner.algorithm.losses import policy_loss, sequence_mean_weights, value_loss
from services.learner.config.algorithm import AlgorithmConfig
from services.learner.data.batch import ExperienceBatch, micro_batches
from services.learner.data.supervised_batch import SupervisedBatch
from services.learner.distributed import World, synchronise_gradients
from services.learner.metrics import StepSums
from services.learner.models.actor_critic import ActorCritic
from services.learner.models.scores import TokenScores, score_completions
from services.learner.targets import Targets, correction_weights

log = logging.getLogger("rollstream.ppo")


def train_minibatch(
    models: ActorCritic,
    batch: ExperienceBatch,
    targets: Targets,
    rows: Sequence[int],
    config: AlgorithmConfig,
    kl_coef: float,
    policy_version: int,
    supervised: SupervisedBatch | None = None,
) -> StepSums:
    """One optimizer step on these rows of the batch.

    Args:
        supervised: rows with answers that the policy is taught in the same step.
        policy_version: the version that the policy had before the update.
    """
    world = models.world
    chosen = batch.completion_mask[list(rows)]
    tokens, sequences = max(int(chosen.sum()), 1), max(int(chosen.any(dim=1).sum()), 1)
    # FSDP averages gradients over the ranks, where the shares of one mean have to be added up.
    share = world.size / tokens
    sums = StepSums.zero(tokens, world.device)
    train_policy = sums.with_policy = policy_version >= config.critic_warmup_steps
    sums.with_critic = config.has_critic
    cut = micro_batches(batch.lengths.tolist(), rows, config.micro_batch_tokens, world.size)
    for index, shares in enumerate(cut):
        part = batch.rows(shares[world.rank])
        target = targets.rows(shares[world.rank], part.completion_mask.shape[1])
        for _, model, _ in models.optimizers():
            synchronise_gradients(model, now=index == len(cut) - 1)

        def policy(scores: TokenScores, part: ExperienceBatch = part, target: Targets = target) -> Tensor:
            loss = _policy_loss(scores, part, target, config, kl_coef, policy_version, sums, sequences)
            return loss * share * (1 - config.ptx_coef)

        def value(values: Tensor, part: ExperienceBatch = part, target: Targets = target) -> Tensor:
            return _value_loss(values, part, target, config, sums) * share

        models.backward(
            part,
            config.temperature,
            config.precision,
            policy_loss=policy if train_policy else None,
            value_loss=value,
            train_entropy=config.entropy_coef != 0,
        )
    if supervised is not None and train_policy:
        sums.ptx = _teach(models, supervised, config)
    _step(models, sums, config, train_policy)
    return sums


def _teach(models: ActorCritic, batch: SupervisedBatch, config: AlgorithmConfig) -> Tensor:
    """Add the gradient of the supervised loss; this rank's share of its mean over the taught tokens."""
    world = models.world
    tokens = max(int(batch.completion_mask.sum()), 1)
    total = torch.zeros((), dtype=torch.float64, device=world.device)
    cut = micro_batches(
        batch.lengths.tolist(), range(len(batch.lengths)), config.micro_batch_tokens, world.size
    )
    for index, shares in enumerate(cut):
        synchronise_gradients(models.policy, now=index == len(cut) - 1)
        part = batch.rows(shares[world.rank])
        loss = -score_completions(models.policy, part, 1.0, config.precision).logprobs.sum() / tokens
        (config.ptx_coef * world.size * loss).backward()
        total += loss.detach()
    return total


def _policy_loss(
    scores: TokenScores,
    part: ExperienceBatch,
    target: Targets,
    config: AlgorithmConfig,
    kl_coef: float,
    policy_version: int,
    sums: StepSums,
    sequences: int,
) -> Tensor:
    """The policy's loss on one micro-batch, a sum over tokens."""
    mask = part.completion_mask
    old_logprobs, weights = target.old_logprobs, target.weights
    if config.correction.proximal == "loglinear":
        staleness = (policy_version - part.token_versions).clamp(min=0)
        old_logprobs = loglinear_proximal(scores.logprobs.detach(), part.rollout_logprobs, staleness)
        weights = correction_weights(part, old_logprobs, config.correction, policy_version)
    per_sequence = torch.ones_like(weights)
    if config.loss_mean == "sequence":
        per_sequence = sequence_mean_weights(mask, sums.tokens, sequences)
    policy = policy_loss(
        scores.logprobs,
        old_logprobs,
        target.advantages,
        mask,
        config.clip_low,
        config.clip_high,
        weights * per_sequence,
        dual_clip=config.dual_clip,
        ratio_clamp=config.ratio_clamp,
        sequence_ratio=config.ratio_level == "sequence",
    )
    entropy = (scores.entropy * per_sequence).sum()
    loss = policy.loss - config.entropy_coef * entropy
    if config.kl_in == "loss":
        kl = kl_estimate(scores.logprobs, target.ref_logprobs, config.kl_estimator)
        loss = loss + kl_coef * torch.where(mask, kl * per_sequence, 0.0).sum()
    sums.add(
        {
            "loss/policy_avg": policy.loss,
            "policy/clipfrac_avg": policy.clipped,
            "policy/approxkl_avg": policy.approx_kl,
            "policy/entropy_avg": scores.entropy.sum(),
            "val/ratio": policy.ratio,
        }
    )
    sums.max_ratio = torch.maximum(sums.max_ratio, policy.max_ratio)
    return loss


def _value_loss(
    values: Tensor, part: ExperienceBatch, target: Targets, config: AlgorithmConfig, sums: StepSums
) -> Tensor:
    """The critic's loss on one micro-batch, a sum over tokens."""
    value = value_loss(values, target.old_values, target.returns, part.completion_mask, config.value_clip)
    sums.add({"loss/value_avg": value.loss, "val/clipfrac_avg": value.clipped})
    return config.vf_coef * value.loss


def _step(models: ActorCritic, sums: StepSums, config: AlgorithmConfig, train_policy: bool) -> None:
    """Clip each model's gradient and step; if any is not finite, skip all and count it. A policy that has
    gone too far is held where it is while a critic of its own steps.

    The norms, and what is compared with a threshold, are taken over all ranks, so the ranks agree.
    """
    sums.grad_norms = {name: _gradient_norm(model) for name, model, _ in models.optimizers()}
    sums.skipped = not all(bool(torch.isfinite(norm)) for norm in sums.grad_norms.values())
    sums.held = train_policy and _gone_too_far(sums, models.world, config)
    if sums.skipped:
        shown = ", ".join(f"of the {name} {float(norm)}" for name, norm in sums.grad_norms.items())
        log.warning("optimizer step skipped: gradient norm %s", shown)
    for name, model, optimizer in models.optimizers():
        learns = name == "critic" or (train_policy and not sums.held)
        if learns and not sums.skipped:
            clip_grads_with_norm_(model.parameters(), config.max_grad_norm, sums.grad_norms[name])
            optimizer.step()
        optimizer.zero_grad()


def _gone_too_far(sums: StepSums, world: World, config: AlgorithmConfig) -> bool:
    """Whether the mean ratio is above `ratio_threshold`, or the distance from the old policy above 1.5 times
    `target_kl`, which also ends the update."""
    if config.ratio_threshold is None and config.target_kl is None:
        return False
    means = sums.means(world)
    sums.ends_update = config.target_kl is not None and means["policy/approxkl_avg"] > 1.5 * config.target_kl
    too_high = config.ratio_threshold is not None and means["val/ratio"] > config.ratio_threshold
    return sums.ends_update or too_high


def _gradient_norm(model: torch.nn.Module) -> Tensor:
    """Norm over all parameters and all ranks, the same on every rank."""
    norm = get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
