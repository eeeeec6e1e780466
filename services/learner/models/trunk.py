"""A critic that is a value head on the policy's own trunk: one forward pass gives logits and values."""

from torch import Tensor, nn
from transformers import PreTrainedModel

from services.learner.models.packing import Packed
from services.learner.models.value_head import ValueHead

HEAD = "value_head"
"""The head is a submodule of the policy with this name, and is sharded and optimised with it."""


def attach_value_head(policy: PreTrainedModel) -> ValueHead:
    """Give a policy a value head that starts at zero. Call it after LoRA, before `distributed.shard`."""
    head = ValueHead(policy.config.get_text_config().hidden_size)
    policy.add_module(HEAD, head)
    return head


def read_states(policy: PreTrainedModel, row: Packed, states: Tensor) -> tuple[Tensor, Tensor | None]:
    """Logits at these positions of the row, and values if the policy has a value head. [N, V], [N]

    The output head sees only these states, so no logits are made for prompts. Both come from within the
    policy's own forward pass, where FSDP has its weights in place; for their gradients to reach all ranks the
    loss must depend on the logits, be it with weight 0.
    """
    values: list[Tensor] = []
    head: ValueHead | None = getattr(policy, HEAD, None)

    def select(_: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        chosen = args[0][0, states]
        if head is not None:
            values.append(head.values(chosen))
        return (chosen[None],)

    selection = policy.get_output_embeddings().register_forward_pre_hook(select)
    try:
        logits = policy(**row.arguments()).logits[0]
    finally:
        selection.remove()
    return logits, values[0] if values else None


class TrunkCritic:
    """Looks like a `Critic`, and reads the values off the policy."""

    def __init__(self, policy: PreTrainedModel) -> None:
        self.policy = policy

    def __call__(self, row: Packed, states: Tensor) -> Tensor:
        """Values of the states at these positions of the row. [N]"""
        values = read_states(self.policy, row, states)[1]
        assert values is not None, "the policy has no value head"
        return values

    @property
    def head(self) -> ValueHead:
        head = self.policy.get_submodule(HEAD)
        assert isinstance(head, ValueHead)
        return head
