"""How the options of the value loss reach the critic's optimizer step."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from services.learner.config.algorithm import AlgorithmConfig
from services.learner.data.batch import ExperienceBatch
from services.learner.distributed import full_state
from services.learner.models.actor_critic import ActorCritic
from tests.learner.samples import changed, own_critic, run_update


def critic_moves(models: ActorCritic, batch: ExperienceBatch, config: AlgorithmConfig, rate: float) -> Tensor:
    """How far an update by plain gradient descent moves each parameter of the critic, as one vector."""
    critic = own_critic(models)
    models = replace(models, critic_optimizer=torch.optim.SGD(critic.parameters(), lr=rate))
    before = full_state(critic)
    run_update(models, batch, config, 0, seed=0)
    return torch.cat([(v - before[name]).flatten() for name, v in full_state(critic).items()])


def test_the_critic_steps_by_the_gradient_of_its_weighed_loss(
    fresh: Callable[[], ActorCritic], batch: ExperienceBatch
) -> None:
    once, twice = (
        critic_moves(fresh(), batch, changed(vf_coef=coefficient, max_grad_norm=1e9), rate=1e-3)
        for coefficient in (0.5, 1.0)
    )
    assert float(once.norm()) > 0
    torch.testing.assert_close(twice, 2 * once, atol=1e-6, rtol=1e-3)


def test_values_that_have_moved_as_far_as_they_may_have_no_gradient(
    fresh: Callable[[], ActorCritic], batch: ExperienceBatch
) -> None:
    """Of returns that lie far off, which the values all approach from one side."""
    batch = replace(batch, rewards=torch.full((len(batch),), 50.0))
    narrow, free = (
        critic_moves(fresh(), batch, changed(value_clip=clip, kl_coef=0.0, epochs=4), rate=1e-2)
        for clip in (0.001, None)
    )
    assert 0 < float(narrow.norm()) < 0.5 * float(free.norm())
