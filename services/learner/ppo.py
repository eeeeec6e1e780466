"""One PPO update, start to end.

Every rank holds the whole batch and every per-token number about it; what is shared out is the passes through
the models. So advantages, whitening and metrics are the same on every rank without another word between them.

Shapes: `B` completions, `T` completion tokens.
"""

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import torch

from services.learner.algorithm.kl import adapted_kl_coef
from services.learner.algorithm.state import AlgorithmState
from services.learner.config.algorithm import AlgorithmConfig
from services.learner.data.batch import ExperienceBatch, minibatches
from services.learner.data.supervised_batch import PtxSource
from services.learner.metrics import batch_metrics, logprob_gap, step_metrics
from services.learner.minibatch import train_minibatch
from services.learner.models.actor_critic import ActorCritic
from services.learner.targets import evaluate, exact_logprobs, final_scores, make_targets, step_scores

log = logging.getLogger("rollstream.ppo")

_GAP_ROWS = 32
"""Completions on which engine and learner are compared when the learner does not compute in float32."""


def update(
    models: ActorCritic,
    batch: ExperienceBatch,
    config: AlgorithmConfig,
    state: AlgorithmState,
    policy_version: int,
    seed: int,
    ptx: PtxSource | None = None,
) -> tuple[dict[str, float], AlgorithmState]:
    """Train policy and critic on one batch of experience and report how it went.

    Args:
        batch: the whole batch, the same on every rank.
        state: what the update before this one left.
        policy_version: the version that the policy has now, before the update.
        seed: of the shuffles into minibatches; the same on every rank, another for each update.
        ptx: supervised rows for each optimizer step.

    Returns:
        Metrics by name and the state for the next update, the same on every rank. Of TRL's 17 names all but
        `eps`, `lr` and `episode`, which belong to the run and not to an update.
    """
    started = time.monotonic()
    torch.manual_seed(seed + models.world.rank)  # of adapters' dropout, the same after a resume
    batch = batch.to(models.world.device)
    evaluation = evaluate(models, batch, config)
    scores, moments = final_scores(batch, config, state.score_moments)
    earned = step_scores(batch, config, moments)
    targets = make_targets(batch, evaluation, scores, config, state.kl_coef, policy_version, earned)
    measured = evaluation.old_logprobs
    if config.precision != "float32" or config.correction.proximal != "recompute":
        # Rounding or approximation would hide the engine's own distance.
        measured = exact_logprobs(models, batch, config, rows=min(_GAP_ROWS, len(batch)))
    evaluated = time.monotonic()

    steps = []
    first = policy_version * _steps(config)
    for index, rows in enumerate(_plan(config, len(batch), seed)):
        supervised = ptx.batch(first + index) if ptx else None
        steps.append(
            train_minibatch(models, batch, targets, rows, config, state.kl_coef, policy_version, supervised)
        )
        if steps[-1].ends_update:
            break
    metrics = batch_metrics(batch, evaluation, targets, scores, config, state.kl_coef, policy_version)
    metrics |= logprob_gap(batch, measured)
    metrics |= step_metrics(steps, models.world, config.minibatches)
    if models.world.is_main and metrics["objective/kl"] < -1:
        log.warning(
            "objective/kl is %.2f, but no distance is negative: completions are not drawn from the policy as "
            "it is (top_k, top_p, min_p), or the reference is a wrong one",
            metrics["objective/kl"],
        )
    finished = time.monotonic()
    metrics |= {
        "tokens/trained": metrics["tokens/evaluated"] * len(steps) / config.minibatches,
        "time/evaluate": evaluated - started,
        "time/optimize": finished - evaluated,
        "time/update": finished - started,
    }
    return metrics, replace(
        state, score_moments=moments, kl_coef=_next_kl_coef(state, metrics, len(batch), config)
    )


def _plan(config: AlgorithmConfig, completions: int, seed: int) -> Iterator[list[int]]:
    """The rows of each optimizer step."""
    return islice(_passes(completions, config.minibatches, seed), _steps(config))


def _steps(config: AlgorithmConfig) -> int:
    """Optimizer steps of an update that nothing ends early."""
    return config.update_steps or config.epochs * config.minibatches


def _passes(completions: int, count: int, seed: int) -> Iterator[list[int]]:
    """Minibatches without end: pass after pass over the batch, each in an order of its own."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield from minibatches(completions, count, generator)


def _next_kl_coef(
    state: AlgorithmState, metrics: dict[str, float], completions: int, config: AlgorithmConfig
) -> float:
    if config.adaptive_kl is None:
        return state.kl_coef
    adaptive = config.adaptive_kl
    kl = metrics["objective/kl"]
    return adapted_kl_coef(state.kl_coef, kl, completions, adaptive.target, adaptive.horizon, adaptive.clip)
