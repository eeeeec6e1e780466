"""The learner's outer loop: feed, PPO, publish, checkpoint, acknowledge, evaluate, log."""

import hashlib
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from services.learner import checkpoint, ppo
from services.learner.algorithm.schedule import is_due, learning_rate_factor
from services.learner.algorithm.state import AlgorithmState
from services.learner.config.algorithm import AlgorithmConfig
from services.learner.config.learner import LearnerConfig, LearnerSettings
from services.learner.coordinator import Coordinator
from services.learner.data.batch import collate
from services.learner.data.chat_template import ChatTemplate, check_arguments, load_chat_template
from services.learner.data.step_rewards import Decode
from services.learner.data.supervised import load_ptx
from services.learner.data.supervised_batch import PtxSource
from services.learner.distributed import World
from services.learner.flops import known_peak, update_flops
from services.learner.models.actor_critic import ActorCritic
from services.learner.models.build import build
from services.learner.models.snapshot import Snapshot, policy_weights
from shared.codec import decode_group, encode
from shared.experience import Group

log = logging.getLogger("rollstream.train")


def train(settings: LearnerSettings, world: World) -> None:
    """Train for the configured number of steps. Runs on every rank; only rank 0 has a coordinator.

    Raises:
    ValueError: bad input (model, prompts, Redis, an existing run), with the remedy.
    """
    config = settings.learner
    chat = load_chat_template(config.chat_template)
    tokenizer = _load_tokenizer(settings.model.path)
    if chat.template:
        tokenizer.chat_template = chat.template  # and so saved with the policy, which is served with it
    check_arguments(tokenizer.chat_template, config.chat_template_arguments)
    decode = _decoder(tokenizer)
    coordinator = Coordinator.open(settings, tokenizer, chat) if world.is_main else None
    resumed = _agree_on_checkpoint(world, coordinator)
    actor_critic = build(settings, world, resumed)
    ptx = _load_ptx(settings, tokenizer, chat, world)
    peak = config.peak_tflops or known_peak(world.device)
    step = version = 0
    state = AlgorithmState(config.kl_coef)
    if resumed:
        loop_state = checkpoint.load_loop_state(resumed)
        step = version = loop_state["step"]
        state = resumed_state(loop_state["algorithm"], config)

    _publish(actor_critic, coordinator, version)
    if coordinator:
        coordinator.evaluate(step)
    while step < config.steps:
        started = time.monotonic()
        groups = _next_groups(world, coordinator, version)
        waited = time.monotonic() - started
        learning_rates = _set_learning_rates(actor_critic, config, step)
        batch, seed = collate(groups, decode), update_seed(settings.run.seed, step)
        metrics, state = ppo.update(actor_critic, batch, config, state, version, seed, ptx)
        step, version = step + 1, version + 1
        if config.reference_refresh_every and step % config.reference_refresh_every == 0:
            actor_critic.refresh_reference()
        metrics |= {"time/wait": waited, **learning_rates}
        if peak:
            flops = update_flops(
                actor_critic,
                metrics["tokens/evaluated"],
                metrics["tokens/trained"],
                recomputes=config.correction.proximal == "recompute",
                trains_policy=step > config.critic_warmup_steps,
            )
            metrics["mfu"] = flops / (metrics["time/update"] * peak * 1e12 * world.size)
        published = time.monotonic()
        _publish(actor_critic, coordinator, version)
        metrics["time/publish"] = time.monotonic() - published
        if coordinator:
            coordinator.finish_step(step, groups, metrics, seconds=time.monotonic() - started)
        if is_due(step, config.checkpoint_every, config.steps):
            _checkpoint(actor_critic, coordinator, step, state, config)
        if coordinator and is_due(step, config.evaluate_every, config.steps):
            coordinator.evaluate(step)
    if coordinator:
        coordinator.close()


def resumed_state(saved: Mapping[str, Any], config: AlgorithmConfig) -> AlgorithmState:
    """What a resumed run goes on with: a coefficient of the KL penalty that adapts, as far as it has come;
    else the one configured now, which may be another than before."""
    state = AlgorithmState.from_json(saved)
    return state if config.adaptive_kl else replace(state, kl_coef=config.kl_coef)


def _decoder(tokenizer: PreTrainedTokenizerBase) -> Decode:
    """To the text that scorers get: as it stands, without special tokens."""

    def decode(ids: Sequence[int]) -> str:
        text = tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return str(text)

    return decode


def _load_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"model.path {path} holds no usable model and tokenizer: {error}") from error
    return tokenizer


def update_seed(run_seed: int, step: int) -> int:
    """The seed of all chance in one update; runs of neighbouring seeds share none."""
    digest = hashlib.blake2b(f"{run_seed}/update/{step}".encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big")


def _load_ptx(
    settings: LearnerSettings, tokenizer: PreTrainedTokenizerBase, chat: ChatTemplate, world: World
) -> PtxSource | None:
    config = settings.learner
    if config.ptx is None:
        return None
    system_message = config.system_message or chat.system_message
    rows = load_ptx(
        config.ptx, tokenizer, config.max_ptx_tokens, system_message, config.chat_template_arguments
    )
    return PtxSource(rows, config.ptx_batch_size, settings.run.seed, world.device)


def _set_learning_rates(actor_critic: ActorCritic, config: LearnerConfig, step: int) -> dict[str, float]:
    """Those of this step for policy and critic, by metric name."""
    factor = learning_rate_factor(
        step, config.steps, config.warmup_steps, config.lr_schedule, config.final_lr_ratio
    )
    rates = {"lr": config.policy_lr * factor, "lr/critic": config.critic_lr * factor}
    actor_critic.set_learning_rates(rates["lr"], rates["lr/critic"])
    return rates


def _next_groups(world: World, coordinator: Coordinator | None, version: int) -> list[Group]:
    """The next batch on every rank: rank 0 takes it from the feed, the others get its bytes."""
    if world.size == 1:
        assert coordinator
        return coordinator.feed.take(version)
    groups = coordinator.feed.take(version) if coordinator else None
    data = world.broadcast_bytes(msgspec.msgpack.encode([encode(g) for g in groups]) if groups else None)
    return groups or [decode_group(payload) for payload in msgspec.msgpack.decode(data, type=list[bytes])]


def _publish(actor_critic: ActorCritic, coordinator: Coordinator | None, version: int) -> None:
    weights = policy_weights(actor_critic)
    if coordinator:
        coordinator.publisher.publish(weights, version)


def _checkpoint(
    actor_critic: ActorCritic,
    coordinator: Coordinator | None,
    step: int,
    state: AlgorithmState,
    config: LearnerConfig,
) -> None:
    """Every rank gathers; rank 0 writes, and acknowledges what the checkpoint holds."""
    snapshot = Snapshot.take(actor_critic, with_reference=config.reference_refresh_every > 0)
    if coordinator:
        coordinator.checkpoint(step, state, snapshot)


def _agree_on_checkpoint(world: World, coordinator: Coordinator | None) -> Path | None:
    """The checkpoint that rank 0 resumes from, on every rank."""
    found = str(coordinator.resumed_from or "").encode() if coordinator else None
    path = world.broadcast_bytes(found).decode()
    return Path(path) if path else None
