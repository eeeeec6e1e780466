"""What one PPO update trains: the three models and their optimizers."""

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from services.learner.distributed import World
from services.learner.models.critic import Critic


@dataclass(frozen=True)
class ActorCritic:
    """The models of PPO, sharded over `world`, and what trains them."""

    policy: PreTrainedModel
    reference: PreTrainedModel
    critic: Critic
    policy_optimizer: torch.optim.Optimizer
    critic_optimizer: torch.optim.Optimizer
    world: World


def build_optimizer(
    model: torch.nn.Module, learning_rate: float, weight_decay: float
) -> torch.optim.Optimizer:
    """AdamW over a model that `distributed.shard` has already placed."""
    return torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=weight_decay, fused=True)
