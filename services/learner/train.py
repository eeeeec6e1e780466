"""The learner's outer loop: feed, PPO, publish, checkpoint, acknowledge, evaluate, log."""

import logging
import time
from pathlib import Path

import msgspec
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from services.learner import checkpoint, distributed, ppo
from services.learner.algorithm.schedule import learning_rate_factor, set_learning_rate
from services.learner.config.learner import LearnerSettings
from services.learner.coordinator import Coordinator
from services.learner.data.batch import collate
from services.learner.distributed import World
from services.learner.models.actor_critic import ActorCritic, build_optimizer
from services.learner.models.critic import load_critic, new_critic
from services.learner.models.policy import load_policy, load_reference
from shared.codec import decode_group, encode
from shared.experience import Group

log = logging.getLogger("rollstream.train")


def train(settings: LearnerSettings, world: World) -> None:
    """Train for the configured number of steps. Runs on every rank; only rank 0 has a coordinator.

    Raises:
    ValueError: bad input (model, prompts, Redis, an existing run), with the remedy.
    """
    config = settings.learner
    tokenizer = _load_tokenizer(settings.model.path)
    coordinator = Coordinator.open(settings, tokenizer) if world.is_main else None
    resumed = _agree_on_checkpoint(world, coordinator)
    actor_critic = _load(settings, world, resumed)
    step = version = checkpoint.load_loop_state(resumed)["step"] if resumed else 0

    _publish(actor_critic, coordinator, version)
    if coordinator:
        coordinator.evaluate(step)
    while step < config.steps:
        started = time.monotonic()
        groups = _next_groups(world, coordinator, version)
        waited = time.monotonic() - started
        learning_rate = _set_learning_rates(actor_critic, settings, step)
        metrics = ppo.update(actor_critic, collate(groups), config, version, seed=settings.run.seed + step)
        step, version = step + 1, version + 1
        metrics |= {"time/wait": waited, "lr": learning_rate}
        published = time.monotonic()
        _publish(actor_critic, coordinator, version)
        metrics["time/publish"] = time.monotonic() - published
        if coordinator:
            coordinator.finish_step(step, groups, metrics, seconds=time.monotonic() - started)
        if step % config.checkpoint_every == 0 or step == config.steps:
            _checkpoint(actor_critic, coordinator, step)
        if coordinator and (step % config.evaluate_every == 0 or step == config.steps):
            coordinator.evaluate(step)
    if coordinator:
        coordinator.close()


def _load_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"model.path {path} holds no usable model and tokenizer: {error}") from error
    return tokenizer


def _load(settings: LearnerSettings, world: World, resumed: Path | None) -> ActorCritic:
    """Models, sharded, and optimizers; the reference is always the model that the run started from."""
    config, path = settings.learner, settings.model.path
    torch.manual_seed(settings.run.seed)
    policy = load_policy(resumed / "policy" if resumed else path)
    critic = load_critic(resumed / "critic") if resumed else new_critic(path)
    reference = load_reference(path)
    for module in (policy, critic, reference):
        distributed.shard(module, world)
    actor_critic = ActorCritic(
        policy=policy,
        reference=reference,
        critic=critic,
        policy_optimizer=build_optimizer(policy, config.policy_lr, config.weight_decay),
        critic_optimizer=build_optimizer(critic, config.critic_lr, config.weight_decay),
        world=world,
    )
    if resumed:
        for name, model, optimizer in _optimizers(actor_critic):
            state = checkpoint.load_optimizer_state(resumed, name)
            distributed.load_full_optimizer_state(model, optimizer, state)
    return actor_critic


def _set_learning_rates(actor_critic: ActorCritic, settings: LearnerSettings, step: int) -> float:
    """Those of this step for policy and critic; returns the policy's."""
    config = settings.learner
    factor = learning_rate_factor(step, config.steps, config.warmup_steps, config.final_lr_ratio)
    set_learning_rate(actor_critic.policy_optimizer, config.policy_lr * factor)
    set_learning_rate(actor_critic.critic_optimizer, config.critic_lr * factor)
    return config.policy_lr * factor


def _next_groups(world: World, coordinator: Coordinator | None, version: int) -> list[Group]:
    """The next batch on every rank: rank 0 takes it from the feed, the others get its bytes."""
    if world.size == 1:
        assert coordinator
        return coordinator.feed.take(version)
    groups = coordinator.feed.take(version) if coordinator else None
    data = world.broadcast_bytes(msgspec.msgpack.encode([encode(g) for g in groups]) if groups else None)
    return groups or [decode_group(payload) for payload in msgspec.msgpack.decode(data, type=list[bytes])]


def _publish(actor_critic: ActorCritic, coordinator: Coordinator | None, version: int) -> None:
    weights = distributed.full_state(actor_critic.policy)
    if coordinator:
        coordinator.publisher.publish(weights, version)


def _checkpoint(actor_critic: ActorCritic, coordinator: Coordinator | None, step: int) -> None:
    """Every rank gathers; rank 0 writes, and acknowledges what the checkpoint holds."""
    policy_state = distributed.full_state(actor_critic.policy)
    critic_state = distributed.full_state(actor_critic.critic)
    optimizers = {
        name: distributed.full_optimizer_state(model, optimizer)
        for name, model, optimizer in _optimizers(actor_critic)
    }
    if coordinator:
        coordinator.checkpoint(step, actor_critic, policy_state, critic_state, optimizers)


def _optimizers(
    actor_critic: ActorCritic,
) -> list[tuple[str, torch.nn.Module, torch.optim.Optimizer]]:
    return [
        ("policy", actor_critic.policy, actor_critic.policy_optimizer),
        ("critic", actor_critic.critic, actor_critic.critic_optimizer),
    ]


def _agree_on_checkpoint(world: World, coordinator: Coordinator | None) -> Path | None:
    """The checkpoint that rank 0 resumes from, on every rank."""
    found = str(coordinator.resumed_from or "").encode() if coordinator else None
    path = world.broadcast_bytes(found).decode()
    return Path(path) if path else None
