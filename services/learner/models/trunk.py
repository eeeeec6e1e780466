"""A critic that is a value head on the policy's own trunk: one forward pass gives logits and values."""

from torch import Tensor, nn
from transformers import PreTrainedModel

from services.learner.models.value_head import ValueHead

HEAD = "value_head"
"""The head is a submodule of the policy with this name, and is sharded and optimised with it."""


def attach_value_head(policy: PreTrainedModel) -> ValueHead:
    """Give a policy a value head that starts at zero. Call it after LoRA, before `distributed.shard`."""
    head = ValueHead(policy.config.get_text_config().hidden_size)
    policy.add_module(HEAD, head)
    return head


def read_states(policy: PreTrainedModel, input_ids: Tensor, states: Tensor) -> tuple[Tensor, Tensor | None]:
    """Logits of the chosen states, and their values if the policy has a value head. [N, V], [N]

    `states` indexes the flattened `[B * S]` positions. The output head sees only these, so no logits are made
    for prompts or padding. Both come from within the policy's own forward pass, where FSDP has its weights in
    place; for their gradients to reach all ranks the loss must depend on the logits, be it with weight 0.
    """
    values: list[Tensor] = []
    head: ValueHead | None = getattr(policy, HEAD, None)

    def select(_: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        chosen = args[0].flatten(0, 1)[states]
        if head is not None:
            values.append(head.values(chosen))
        return (chosen[None],)

    selection = policy.get_output_embeddings().register_forward_pre_hook(select)
    try:
        logits = policy(input_ids=input_ids, use_cache=False).logits[0]
    finally:
        selection.remove()
    return logits, values[0] if values else None


class TrunkCritic:
    """Looks like a `Critic`, and reads the values off the policy."""

    def __init__(self, policy: PreTrainedModel) -> None:
        self.policy = policy

    def __call__(self, input_ids: Tensor, states: Tensor) -> Tensor:
        """Values of the chosen states; `states` indexes the flattened `[B * S]` positions. [N]"""
        values = read_states(self.policy, input_ids, states)[1]
        assert values is not None, "the policy has no value head"
        return values

    @property
    def head(self) -> ValueHead:
        head = self.policy.get_submodule(HEAD)
        assert isinstance(head, ValueHead)
        return head
