"""What one PPO update trains: policy, reference and critic, and their optimizers."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from services.learner import distributed
from services.learner.distributed import World
from services.learner.models.critic import Critic
from services.learner.models.lora import AdapterReference, refresh_reference_adapter
from services.learner.models.scores import (
    Precision,
    Sequences,
    TokenScores,
    completion_values,
    score_completions,
    scores_with_values,
)
from services.learner.models.trunk import HEAD, TrunkCritic


@dataclass(frozen=True)
class ActorCritic:
    """The models of PPO, sharded over `world`, and what trains them.

    Whether the critic has a backbone of its own or shares the policy's, and whether the reference is a model
    or the policy with other adapters, is known here alone: an update calls `scores_and_values`,
    `reference_logprobs` and `backward`.
    """

    policy: PreTrainedModel
    reference: PreTrainedModel | AdapterReference | None
    """None where no distance to it is charged."""
    critic: Critic | TrunkCritic | None
    """None where the advantages need none."""
    policy_optimizer: torch.optim.Optimizer
    """Holds a value head on the policy's trunk too, with its own learning rate."""
    critic_optimizer: torch.optim.Optimizer | None
    """None without a critic of its own."""
    world: World

    def scores_and_values(
        self, batch: Sequences, temperature: float, precision: Precision
    ) -> tuple[TokenScores, Tensor | None]:
        """Scores under the policy, and values if there is a critic [B, T]; one pass where they share a trunk.

        For use without gradients; `backward` trains.
        """
        if isinstance(self.critic, TrunkCritic):
            return scores_with_values(self.policy, batch, temperature, precision)
        scores = score_completions(self.policy, batch, temperature, precision)
        return scores, None if self.critic is None else completion_values(self.critic, batch, precision)

    def reference_logprobs(self, batch: Sequences, temperature: float, precision: Precision) -> Tensor | None:
        """Log-probabilities under the reference, None without one. [B, T]"""
        if self.reference is None:
            return None
        acting = (
            self.reference.acting()
            if isinstance(self.reference, AdapterReference)
            else nullcontext(self.reference)
        )
        with acting as model:
            return score_completions(model, batch, temperature, precision).logprobs

    def backward(
        self,
        batch: Sequences,
        temperature: float,
        precision: Precision,
        *,
        policy_loss: Callable[[TokenScores], Tensor] | None,
        value_loss: Callable[[Tensor], Tensor],
        train_entropy: bool = False,
    ) -> None:
        """Add the gradients of both losses on one micro-batch.

        Separate models run one after the other, so that only one's activations are held at a time; with a
        shared trunk one pass and one backward pass serve both.

        Args:
            policy_loss: of the scores, in its final scale; None leaves a separate policy untrained.
            value_loss: of the values [B, T], in its final scale; not called without a critic.
        """
        if isinstance(self.critic, TrunkCritic):
            assert policy_loss is not None, "on a shared trunk the policy cannot be left out"
            scores, values = scores_with_values(self.policy, batch, temperature, precision, train_entropy)
            (policy_loss(scores) + value_loss(values)).backward()
            return
        if policy_loss is not None:
            scores = score_completions(self.policy, batch, temperature, precision, train_entropy)
            policy_loss(scores).backward()
            del scores
        if self.critic is not None:
            value_loss(completion_values(self.critic, batch, precision)).backward()

    def optimizers(self) -> list[tuple[str, nn.Module, torch.optim.Optimizer]]:
        """Each optimizer with the model it trains, by name."""
        found: list[tuple[str, nn.Module, torch.optim.Optimizer]] = []
        found.append(("policy", self.policy, self.policy_optimizer))
        if self.critic_optimizer is not None:
            assert isinstance(self.critic, Critic)
            found.append(("critic", self.critic, self.critic_optimizer))
        return found

    def set_learning_rates(self, policy: float, critic: float) -> None:
        """Those of the next optimizer steps. A value head on the policy's trunk has the critic's."""
        for name, _, optimizer in self.optimizers():
            for group in optimizer.param_groups:
                group["lr"] = critic if name == "critic" or group["is_head"] else policy

    def refresh_reference(self) -> None:
        """Make the reference the policy of now."""
        if isinstance(self.reference, AdapterReference):
            distributed.reshard(self.policy)
            refresh_reference_adapter(self.policy)
        elif self.reference is not None:
            distributed.copy_parameters(self.policy, self.reference)


def build_optimizer(
    model: nn.Module,
    learning_rate: float,
    weight_decay: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
) -> torch.optim.Optimizer:
    """AdamW over what learns in a model that `distributed.shard` has already placed.

    Weight decay spares biases and norms, which is all that is no matrix. The value head on a policy's trunk
    has groups of its own, marked `is_head`.
    """
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            key = (parameter.ndim >= 2, name.startswith(f"{HEAD}."))
            groups.setdefault(key, []).append(parameter)
    return torch.optim.AdamW(
        [
            {"params": parameters, "weight_decay": weight_decay if decays else 0.0, "is_head": is_head}
            for (decays, is_head), parameters in groups.items()
        ],
        lr=learning_rate,
        betas=betas,
        eps=eps,
        fused=True,
    )
