"""Supervised rows beside PPO, in the same optimizer steps."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from services.learner import ppo
from services.learner.algorithm.state import AlgorithmState
from services.learner.data.batch import ExperienceBatch
from services.learner.data.supervised import PtxRow
from services.learner.data.supervised_batch import PtxSource
from services.learner.distributed import full_state
from services.learner.models.actor_critic import ActorCritic
from shared.experience import Int32Array
from tests.learner.samples import changed

ROWS = (
    PtxRow(Int32Array([3, 5, 7, 9, 2]), [False, False, True, True, True]),
    PtxRow(Int32Array([4, 4, 6]), [False, True, True]),
    PtxRow(Int32Array([8, 1, 1, 2]), [True, True, True, True]),
)


def source(size: int = 3) -> PtxSource:
    return PtxSource(ROWS, size, seed=0, device=torch.device("cpu"))


def test_the_loss_is_the_mean_over_taught_tokens(
    fresh: Callable[[], ActorCritic], batch: ExperienceBatch
) -> None:
    """The first token of a row is given, whatever its mask says."""
    models, taught, total = fresh(), 0, 0.0
    with torch.no_grad():
        for row in ROWS:
            ids = torch.tensor([list(row.token_ids)])
            logprobs = models.policy(ids).logits[0].log_softmax(-1)
            for t in range(1, len(row.token_ids)):
                if row.loss_mask[t]:
                    total, taught = total - float(logprobs[t - 1, ids[0, t]]), taught + 1
    state = AlgorithmState(0.05)
    config = changed(ptx_coef=0.5, micro_batch_tokens=6)
    metrics, _ = ppo.update(models, batch, config, state, 0, seed=0, ptx=source())
    assert metrics["loss/ptx_avg"] == pytest.approx(total / taught, abs=1e-5)


def test_it_shares_the_gradient_with_ppo_by_its_coefficient(
    fresh: Callable[[], ActorCritic], batch: ExperienceBatch
) -> None:
    """With plain gradient descent: (1 - c) of the one step and c of the other."""

    def step(coefficient: float, ptx: PtxSource | None) -> Tensor:
        models = fresh()
        models = replace(models, policy_optimizer=torch.optim.SGD(models.policy.parameters(), lr=1e-3))
        before = full_state(models.policy)
        config = changed(ptx_coef=coefficient, max_grad_norm=1e9)
        ppo.update(models, batch, config, AlgorithmState(0.05), 0, seed=0, ptx=ptx)
        return torch.cat([(v - before[n]).flatten() for n, v in full_state(models.policy).items()])

    alone, both = step(0.0, None), step(0.25, source())
    nearly_only = step(0.999, source())
    torch.testing.assert_close(both, 0.75 * alone + 0.25 * nearly_only, atol=2e-6, rtol=2e-2)


def test_teaching_makes_its_answers_likelier(
    fresh: Callable[[], ActorCritic], batch: ExperienceBatch
) -> None:
    models, state, losses = fresh(), AlgorithmState(0.05), []
    config = changed(ptx_coef=0.9, epochs=4)
    for version in range(3):
        metrics, state = ppo.update(models, batch, config, state, version, seed=0, ptx=source(2))
        losses.append(metrics["loss/ptx_avg"])
    assert losses[-1] < losses[0] - 0.1


def test_each_step_takes_other_rows_and_the_same_ones_after_a_resume() -> None:
    rows = source(2)
    first, second, again = rows.batch(0), rows.batch(1), source(2).batch(1)
    assert torch.equal(second.input_ids, again.input_ids)
    assert first.input_ids.shape != second.input_ids.shape or not torch.equal(
        first.input_ids, second.input_ids
    )


def test_a_rank_without_rows_teaches_nothing() -> None:
    assert not source().batch(0).rows([]).completion_mask.any()
