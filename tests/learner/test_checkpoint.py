"""Checkpoints: whole or not there, loadable by transformers, everything back as it was."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from examples.arithmetic.tokenizer import build_tokenizer
from services.learner import checkpoint, distributed
from services.learner.models.actor_critic import ActorCritic, build_optimizer
from services.learner.models.critic import load_critic
from services.learner.models.policy import load_policy
from services.learner.models.snapshot import Snapshot
from tests.learner.samples import ALONE

EPOCH = 1_700_000_000


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model and its tokenizer."""
    path = tmp_path_factory.mktemp("base")
    tokenizer = build_tokenizer(128)
    sizes: Any = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    LlamaForCausalLM(
        LlamaConfig(vocab_size=len(tokenizer), tie_word_embeddings=True, **sizes)
    ).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def save(folder: Path, base: Path, step: int, keep: int = 2) -> tuple[Path, Any, Any, torch.optim.Optimizer]:
    """Train a moment, then write a checkpoint."""
    policy, critic = load_policy(base), load_critic(base)
    optimizer = build_optimizer(policy, 1e-3, 0.0)
    policy(input_ids=torch.tensor([[1, 2, 3]])).logits.sum().backward()
    optimizer.step()
    path = checkpoint.save(
        folder,
        step,
        models=Snapshot.take(
            ActorCritic(
                policy=policy,
                reference=None,
                critic=critic,
                policy_optimizer=optimizer,
                critic_optimizer=build_optimizer(critic, 1e-3, 0.0),
                world=ALONE,
            )
        ),
        tokenizer=AutoTokenizer.from_pretrained(base),
        loop_state={"step": step, "feed": {"position": 7}},
        learner_epoch=EPOCH,
        keep=keep,
    )
    return path, policy, critic, optimizer


def test_all_of_a_checkpoint_comes_back(tmp_path: Path, base: Path) -> None:
    path, policy, critic, optimizer = save(tmp_path, base, step=3)
    assert checkpoint.newest(tmp_path) == path
    assert checkpoint.load_loop_state(path) == {"step": 3, "feed": {"position": 7}}
    loaded = AutoModelForCausalLM.from_pretrained(path / "policy", dtype=torch.float32)
    for name, value in policy.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    assert AutoTokenizer.from_pretrained(path / "policy").chat_template
    for name, value in critic.state_dict().items():
        assert torch.equal(load_critic(path / "critic").state_dict()[name], value), name
    again = build_optimizer(loaded, 1e-3, 0.0)
    distributed.load_full_optimizer_state(loaded, again, checkpoint.load_optimizer_state(path, "policy"))
    before = distributed.full_optimizer_state(policy, optimizer)
    after = distributed.full_optimizer_state(loaded, again)
    assert before.keys() == after.keys() and before
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_only_the_newest_are_kept(tmp_path: Path, base: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, base, step)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000002", "step-000003"]


def test_a_checkpoint_with_a_damaged_file_is_passed_over(tmp_path: Path, base: Path) -> None:
    older, *_ = save(tmp_path, base, 1)
    newer, *_ = save(tmp_path, base, 2)
    weights = newer / "policy" / "model.safetensors"
    damaged = bytearray(weights.read_bytes())
    damaged[-1] ^= 1
    weights.write_bytes(damaged)
    assert checkpoint.newest(tmp_path) == older


def test_a_checkpoint_that_was_cut_short_does_not_count(tmp_path: Path, base: Path) -> None:
    whole, *_ = save(tmp_path, base, 1)
    cut_short = whole.rename(tmp_path / f".step-000001-of-{EPOCH - 1}.partial")
    assert checkpoint.newest(tmp_path) is None
    save(tmp_path, base, 1)
    assert not cut_short.exists()
    manifest = json.loads((tmp_path / "step-000001" / "manifest.json").read_text())
    assert "policy/model.safetensors" in manifest["files"]


def test_what_a_newer_learner_is_writing_is_left_alone(tmp_path: Path, base: Path) -> None:
    successors = tmp_path / f".step-000001-of-{EPOCH + 1}.partial"
    successors.mkdir()
    save(tmp_path, base, 1)  # by a learner that was replaced and has not noticed
    assert successors.exists()


def test_a_run_without_checkpoints_has_no_newest(tmp_path: Path) -> None:
    assert checkpoint.newest(tmp_path / "nowhere") is None
