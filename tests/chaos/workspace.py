"""What every chaos run starts from: a model of some ten thousand weights, its prompts, and a scorer."""

import tomllib
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from examples.arithmetic.problems import first_problems, write_prompts
from examples.arithmetic.tokenizer import build_tokenizer

PROMPTS = 64

SCORE_SECONDS = "CHAOS_SCORE_SECONDS"
"""Environment variable: how long the scorer takes, so that there is a time to strike."""

SCORER = '''
import os
import time

SECONDS = float(os.environ.get("CHAOS_SCORE_SECONDS", 0))


def score(item, parameters):
    """Some reward that depends on every character, so that a changed completion changes the weights."""
    time.sleep(SECONDS)
    response = item.response
    return (sum(map(ord, response)) % 97) / 97 - len(response) / 50
'''

CONFIG = """
[run]
name = "chaos"
seed = 3
[model]
path = "model"
[rollout]
port = 0
max_model_len = 256
max_concurrent_groups = 8
[reward]
port = 0
[reward.scorers.score]
kind = "plugin"
path = "scorer.py"
run_in = "service"
[learner]
prompts = "train.jsonl"
max_new_tokens = 8
steps = 12
groups_per_step = 4
completions_per_prompt = 2
minibatches = 2
policy_lr = 3e-3
critic_lr = 3e-3
checkpoint_every = 2
log_completions_every = 1
trackers = []
rollout_timeout = 60.0
"""


def make_workspace(folder: Path, hidden_size: int = 16) -> Path:
    """Write model, prompts, scorer and run.toml into `folder`; the same each time. vLLM needs more."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer(256)
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=hidden_size, intermediate_size=32, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=256,
            initializer_range=0.3, tie_word_embeddings=False, pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
        )
    )  # fmt: skip
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    write_prompts(folder / "train.jsonl", first_problems("train", PROMPTS))
    (folder / "scorer.py").write_text(SCORER)
    (folder / "run.toml").write_text(CONFIG)
    return folder


def setting(folder: Path, table: str, key: str) -> Any:
    return tomllib.loads((folder / "run.toml").read_text())[table][key]
