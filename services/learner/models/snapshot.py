"""What is trained, gathered from all ranks: the policy to publish, and all that a checkpoint holds."""

from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from services.learner.distributed import full_optimizer_state, full_state
from services.learner.models.actor_critic import ActorCritic
from services.learner.models.adapter import REFERENCE, TRAINED, adapter_state, save_adapter
from services.learner.models.critic import Critic, backbone_state, save_critic
from services.learner.models.lora import has_lora, merged_state
from services.learner.models.trunk import HEAD
from services.learner.models.value_head import save_value_head


def policy_weights(models: ActorCritic) -> dict[str, Tensor]:
    """The policy as a plain Hugging Face model: adapters merged, no value head. On rank 0's CPU; empty on the
    other ranks. Every rank must call it."""
    return _plain(models.policy, full_state(models.policy))


@dataclass(frozen=True)
class Snapshot:
    """Full tensors on rank 0's CPU, by parameter name; all empty on the other ranks."""

    models: ActorCritic
    policy: dict[str, Tensor]
    critic: dict[str, Tensor]
    """Empty without a critic of its own."""
    reference: dict[str, Tensor]
    """Empty where a resumed run finds the reference in the folder that it came from."""
    optimizers: dict[str, dict[str, Tensor]]

    @staticmethod
    def take(models: ActorCritic, with_reference: bool = False) -> "Snapshot":
        """Gather everything. Every rank must call it.

        Args:
            with_reference: also the weights of a reference model, since it is refreshed from time to time.
        """
        reference = models.reference if with_reference else None
        return Snapshot(
            models=models,
            policy=full_state(models.policy),
            critic=full_state(models.critic) if isinstance(models.critic, Critic) else {},
            reference=full_state(reference) if isinstance(reference, PreTrainedModel) else {},
            optimizers={n: full_optimizer_state(model, o) for n, model, o in models.optimizers()},
        )

    def write(self, folder: Path) -> None:
        """Write it as folders that transformers, peft and vLLM load, and `build.build` resumes from."""
        policy, critic = self.models.policy, self.models.critic
        policy.save_pretrained(folder / "policy", state_dict=_plain(policy, self.policy))
        if has_lora(policy):
            save_adapter(policy, self.policy, folder / "policy_adapter", TRAINED)
        if adapter_state(self.policy, REFERENCE):
            save_adapter(policy, self.policy, folder / "reference_adapter", REFERENCE)
        if self.reference:
            assert isinstance(self.models.reference, PreTrainedModel)
            self.models.reference.save_pretrained(folder / "reference", state_dict=self.reference)
        if isinstance(critic, Critic):
            save_critic(critic, self.critic, folder / "critic")
            if has_lora(critic.backbone):
                save_adapter(critic.backbone, backbone_state(self.critic), folder / "critic_adapter", TRAINED)
        elif critic is not None:
            save_value_head(self.policy[f"{HEAD}.weight"], self.policy[f"{HEAD}.bias"], folder / "critic")
        for name, state in self.optimizers.items():
            save_file(state, folder / f"{name}_optimizer.safetensors")


def _plain(policy: PreTrainedModel, state: dict[str, Tensor]) -> dict[str, Tensor]:
    own = {name: tensor for name, tensor in state.items() if not name.startswith(f"{HEAD}.")}
    return merged_state(policy, own)
