"""The models of a run, as it starts or resumes them: loaded, adapted, sharded, with their optimizers."""

from pathlib import Path

import torch
from transformers import PreTrainedModel

from services.learner import distributed
from services.learner.checkpoint import load_optimizer_state
from services.learner.config.learner import LearnerConfig, LearnerSettings
from services.learner.distributed import World
from services.learner.models.actor_critic import ActorCritic, build_optimizer
from services.learner.models.adapter import REFERENCE, TRAINED, load_adapter
from services.learner.models.critic import Critic, load_critic
from services.learner.models.lora import AdapterReference, attach_lora, keep_reference_adapter
from services.learner.models.policy import load_policy, load_reference
from services.learner.models.recompute import recompute_activations
from services.learner.models.trunk import TrunkCritic, attach_value_head


def build(
    settings: LearnerSettings, world: World, resumed: Path | None, smallest_block: int = 1_000_000
) -> ActorCritic:
    """Load, adapt, shard.

    Only what was trained comes from the checkpoint; the reference is the model that the run started from,
    also after a resume, unless the run refreshes it.

    Args:
        resumed: the checkpoint to go on from.
        smallest_block: as in `distributed.shard`.

    Raises:
        ValueError: a folder without the model that is expected there, or models that do not fit together.
    """
    config, start = settings.learner, settings.model.path
    torch.manual_seed(settings.run.seed)  # new adapters are random, and the same on every rank
    policy = _policy(config, start, resumed)
    critic = _critic(config, start, resumed, policy)
    reference = _reference(config, start, resumed, policy)
    models: list[torch.nn.Module] = [policy, *([critic] if isinstance(critic, Critic) else [])]
    for model in models:
        if config.gradient_checkpointing:
            recompute_activations(model)
        distributed.shard(model, world, smallest_block)
    if isinstance(reference, PreTrainedModel):
        distributed.shard(reference, world, smallest_block)

    adam = config.adam_betas, config.adam_eps
    actor_critic = ActorCritic(
        policy=policy,
        reference=reference,
        critic=critic,
        policy_optimizer=build_optimizer(policy, config.policy_lr, config.weight_decay, *adam),
        critic_optimizer=build_optimizer(critic, config.critic_lr, config.weight_decay, *adam)
        if isinstance(critic, Critic)
        else None,
        world=world,
    )
    if resumed:
        for name, model, optimizer in actor_critic.optimizers():
            distributed.load_full_optimizer_state(model, optimizer, load_optimizer_state(resumed, name))
    return actor_critic


def _policy(config: LearnerConfig, start: Path, resumed: Path | None) -> PreTrainedModel:
    if config.lora is None:
        return load_policy(resumed / "policy" if resumed else start)
    policy = load_policy(start)
    attach_lora(policy, config.lora)
    if config.reference == "start" and config.reference_path is None:
        trains_on = config.lora.adapters and not config.lora.new_adapter
        if trains_on or config.reference_refresh_every:
            keep_reference_adapter(policy)
            if resumed and (resumed / "reference_adapter").is_dir():
                load_adapter(policy, resumed / "reference_adapter", REFERENCE)
    if resumed:
        load_adapter(policy, resumed / "policy_adapter", TRAINED)
    return policy


def _reference(
    config: LearnerConfig, start: Path, resumed: Path | None, policy: PreTrainedModel
) -> PreTrainedModel | AdapterReference | None:
    if config.reference == "none":
        return None
    if config.reference_path is None and config.lora:
        return AdapterReference(policy)
    if resumed and (resumed / "reference").is_dir():
        return load_reference(resumed / "reference")
    reference = load_reference(config.reference_path or start)
    own, needed = (model.config.get_text_config().vocab_size for model in (reference, policy))
    if own < needed:
        raise ValueError(
            f"reference_path {config.reference_path} has a vocabulary of {own}, the policy one of {needed}: "
            "give a model with the policy's tokenizer"
        )
    return reference


def _critic(
    config: LearnerConfig, start: Path, resumed: Path | None, policy: PreTrainedModel
) -> Critic | TrunkCritic | None:
    if not config.has_critic:
        return None
    source = config.critic.path or start
    if config.critic.trunk == "policy":
        found = attach_value_head(policy).load(resumed / "critic" if resumed else source)
        if config.critic.path and not found:
            raise ValueError(
                f"critic.path {source} has no value head (value_head.safetensors): with "
                "critic.trunk = 'policy' only a head is taken from it. Leave it out to start from zero"
            )
        return TrunkCritic(policy)
    if config.critic_lora is None:
        return load_critic(resumed / "critic" if resumed else source)
    critic = load_critic(source)
    attach_lora(critic.backbone, config.critic_lora)
    heads = list(reversed(config.critic_lora.adapters))
    if resumed:
        load_adapter(critic.backbone, resumed / "critic_adapter", TRAINED)
        heads = [resumed / "critic"]
    any(critic.head.load(folder) for folder in heads)  # the last adapter that has one
    return critic
