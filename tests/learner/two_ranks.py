"""What each rank of `test_distributed` runs, under torchrun: `python -m tests.learner.two_ranks FOLDER`.

Rank 0 leaves its findings in the folder; an assertion that fails on any rank fails the launcher.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers import AutoTokenizer

from services.learner import distributed, ppo
from services.learner.algorithm.state import AlgorithmState
from services.learner.data.batch import collate
from services.learner.data.chat_template import load_chat_template
from services.learner.data.supervised import load_ptx
from services.learner.data.supervised_batch import PtxSource
from services.learner.distributed import World, join_world
from services.learner.models.actor_critic import ActorCritic
from services.learner.models.build import build
from services.learner.models.critic import save_critic
from services.learner.models.snapshot import Snapshot, policy_weights
from services.learner.targets import evaluate
from tests.learner.samples import (
    changed,
    load_models,
    make_groups,
    own_critic,
    run_update,
    settings_for,
    train_for,
)

_LORA = {"rank": 3, "alpha": 6}
_STEPS: dict[str, Any] = {
    "policy_lr": 1e-3,
    "critic_lr": 1e-3,
    "adam_eps": 1e-4,  # rounding would else decide the direction of the smallest gradients
    "minibatches": 2,
    "micro_batch_tokens": 40,
}
BUILT: dict[str, dict[str, Any]] = {
    "lora": {"lora": _LORA, "critic_lora": _LORA, **_STEPS},
    "trunk": {"critic": {"trunk": "policy"}, **_STEPS},
    "recomputed": {
        "lora": _LORA,
        "critic": {"trunk": "policy"},
        "gradient_checkpointing": True,
        "reference_refresh_every": 1,
        **_STEPS,
    },
    "sequences": {
        "loss_mean": "sequence",
        "ratio_level": "sequence",
        "kl_in": "loss",
        "kl_estimator": "k3",
        "correction": {"weight": "sequence"},
        "ratio_threshold": 1.05,  # holds the policy in the last step of the first update
        "target_kl": 0.05,  # ends the second update before its last step
        **_STEPS,
    },
    "loglinear": {"correction": {"proximal": "loglinear"}, **_STEPS},
}
"""Kinds of models, sharded block by block, and of losses and thresholds on batches one version old."""
SETTINGS = changed(epochs=2, minibatches=3, micro_batch_tokens=40, entropy_coef=0.01)
GROUPS, COMPLETIONS = 5, 3  # five rows to a minibatch: one rank has a row less, and an idle micro-batch


def updates(actor_critic: ActorCritic, first: int, last: int) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for step in range(first, last):
        batch = collate(make_groups(GROUPS, COMPLETIONS, seed=step, version=step))
        metrics = run_update(actor_critic, batch, SETTINGS, policy_version=step + 1, seed=step)
    return metrics


def save_updated(folder: Path, name: str, world: World) -> None:
    # The tied model is sharded block by block, the other as a whole.
    actor_critic = load_models(folder / name, world, smallest_block=0 if name == "tied" else 10**9)
    sharded = [m for m in actor_critic.policy.modules() if isinstance(m, FSDPModule)]
    assert len(sharded) == (3 if name == "tied" else 1)
    assert all(isinstance(p, DTensor) for p in actor_critic.policy.parameters())
    metrics = updates(actor_critic, 0, 1)
    policy, critic = (distributed.full_state(m) for m in (actor_critic.policy, own_critic(actor_critic)))
    assert bool(policy) == bool(critic) == world.is_main
    if world.is_main:
        save_file(policy, folder / f"{name}-policy.safetensors")
        save_file(critic, folder / f"{name}-critic.safetensors")
        (folder / f"{name}-metrics.json").write_text(json.dumps(metrics))
        actor_critic.policy.save_pretrained(folder / f"{name}-saved/policy", state_dict=policy)
        save_critic(own_critic(actor_critic), critic, folder / f"{name}-saved/critic")
    world.barrier()


def train_built(
    folder: Path, kind: str, world: World, resumed: Path | None, first: int
) -> tuple[ActorCritic, dict[str, float]]:
    """Models of a kind from a checkpoint or from the start, trained on from step `first` to 2."""
    settings = settings_for(folder / "tied", **BUILT[kind])
    models = build(settings, world, resumed, smallest_block=0)
    metrics: dict[str, float] = {}
    for step in range(first, 2):
        metrics = train_for(models, settings.learner, step, step + 1, age=1)
        models.refresh_reference()
        if first == 0 and step == 0:
            snapshot = Snapshot.take(models, with_reference=True)
            if world.is_main:
                snapshot.write(folder / f"{kind}-after-one")
    return models, metrics


def check_built(folder: Path, kind: str, world: World) -> None:
    """What two ranks publish is left for a comparison with one, and a resume ends in the same weights."""
    models, _ = train_built(folder, kind, world, None, 0)
    assert len([m for m in models.policy.modules() if isinstance(m, FSDPModule)]) == 3
    published = policy_weights(models)
    world.barrier()
    resumed = policy_weights(train_built(folder, kind, world, folder / f"{kind}-after-one", 1)[0])
    assert bool(published) == bool(resumed) == world.is_main
    assert all(torch.equal(tensor, resumed[name]) for name, tensor in published.items())
    if world.is_main:
        save_file(published, folder / f"{kind}-published.safetensors")


def train_taught(folder: Path, world: World, with_ptx: bool = True) -> tuple[ActorCritic, dict[str, float]]:
    """Two updates beside rows with answers, which ColossalChat's conversation template renders. Three rows of
    very different lengths to a step: at times one rank has none of them."""
    options = {"ptx": folder / "ptx.jsonl", "ptx_coef": 0.4, "ptx_batch_size": 3, **_STEPS}
    settings = settings_for(folder / "chat", chat_template=folder / "template.json", **options)
    config = settings.learner
    chat = load_chat_template(config.chat_template)
    tokenizer = AutoTokenizer.from_pretrained(settings.model.path)
    tokenizer.chat_template = chat.template
    assert config.ptx
    rows = load_ptx(config.ptx, tokenizer, config.max_ptx_tokens, chat.system_message)
    ptx = PtxSource(rows, config.ptx_batch_size, settings.run.seed, world.device) if with_ptx else None
    models = build(settings, world, None, smallest_block=0)
    metrics: dict[str, float] = {}
    state = AlgorithmState(config.kl_coef)
    for step in range(2):
        batch = collate(make_groups(4, 2, seed=step, version=step))
        metrics, state = ppo.update(models, batch, config, state, step, seed=step, ptx=ptx)
    return models, metrics


def save_taught(folder: Path, world: World) -> None:
    models, metrics = train_taught(folder, world)
    published = policy_weights(models)
    if world.is_main:
        save_file(published, folder / "taught-published.safetensors")
        (folder / "taught-metrics.json").write_text(json.dumps(metrics))


def check_resume(folder: Path, name: str, world: World) -> None:
    """Two updates in one go, and two with everything saved and loaded between them, end alike."""
    straight, broken = load_models(folder / name, world), load_models(folder / name, world)
    updates(straight, 0, 2)
    updates(broken, 0, 1)
    files = {}
    for part, model, optimizer in broken.optimizers():
        state = distributed.full_state(model)
        moments = distributed.full_optimizer_state(model, optimizer)
        files[part] = (folder / f"{part}.safetensors", folder / f"{part}-optimizer.safetensors")
        if world.is_main:
            save_file(state, files[part][0])
            save_file(moments, files[part][1])
    world.barrier()
    resumed = load_models(folder / name, world)
    for part, model, optimizer in resumed.optimizers():
        distributed.load_full_state(model, load_file(files[part][0]))
        distributed.load_full_optimizer_state(model, optimizer, load_file(files[part][1]))
    updates(resumed, 1, 2)
    for part in ("policy", "critic"):
        ours = distributed.full_state(getattr(resumed, part))
        for key, value in distributed.full_state(getattr(straight, part)).items():
            assert torch.equal(value, ours[key]), f"{part} {key} differs after a resume"


def check_skip(folder: Path, name: str, world: World) -> None:
    """One row breaks its gradient; it lies with one rank, and both must leave the step out."""
    actor_critic, batch = load_models(folder / name, world), collate(make_groups(2, 2))
    before = distributed.full_state(actor_critic.policy)
    rewards = batch.rewards.clone()
    rewards[0] = 1e38
    settings = changed(whiten_advantages=False)
    metrics = run_update(actor_critic, replace(batch, rewards=rewards), settings, 0, seed=0)
    assert metrics["steps/skipped"] == 1
    for key, value in distributed.full_state(actor_critic.policy).items():
        assert torch.equal(value, before[key]), key


def check_load_after_a_forward_pass(folder: Path, name: str, world: World) -> None:
    """Evaluation leaves gathered weights behind; loading must reach the shards and not those copies."""
    actor_critic, batch = load_models(folder / name, world), collate(make_groups(2, 2))
    before = evaluate(actor_critic, batch, SETTINGS)
    state = load_file(folder / f"{name}-policy.safetensors")
    distributed.load_full_state(actor_critic.policy, state)
    for key, value in distributed.full_state(actor_critic.policy).items():
        assert torch.equal(value, state[key]), key
    after = evaluate(actor_critic, batch, SETTINGS)
    assert not torch.allclose(before.old_logprobs, after.old_logprobs, atol=1e-3)


def check_words(world: World) -> None:
    for data in (b"", b"\x00abc", bytes(range(256)) * 5000):
        assert world.broadcast_bytes(data if world.is_main else None) == data
    assert world.all_reduce_sum(torch.tensor([1.0, world.rank])).tolist() == [2.0, 1.0]
    assert world.all_reduce_max(torch.tensor([float(world.rank)])).tolist() == [1.0]


def check_agreement(world: World) -> None:
    """Bytes that reach one rank otherwise than they were sent stop both."""
    genuine = dist.broadcast

    def garble(tensor: Tensor, src: int) -> None:
        genuine(tensor, src=src)
        if tensor.dtype == torch.uint8 and not world.is_main:
            tensor[3] ^= 1

    with mock.patch.object(dist, "broadcast", garble), pytest.raises(RuntimeError, match="do not agree"):
        world.broadcast_bytes(b"experience" if world.is_main else None)
    check_words(world)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    world = join_world()
    assert world.size == 2
    check_words(world)
    check_agreement(world)
    for name in ("tied", "untied"):
        save_updated(folder, name, world)
    for kind in BUILT:
        check_built(folder, kind, world)
    save_taught(folder, world)
    check_resume(folder, "tied", world)
    check_skip(folder, "tied", world)
    check_load_after_a_forward_pass(folder, "tied", world)
    world.leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
