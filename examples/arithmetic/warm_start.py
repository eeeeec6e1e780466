"""Train a tiny Llama from scratch, by plain supervised learning, until it is mediocre at the word problems.

PPO needs a start that earns a reward now and then. Training stops as soon as sampled responses would be right
for `TARGET_ACCURACY` of the held-out questions, which leaves most of the learning to PPO.
"""

import itertools
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

from examples.arithmetic.problems import (
    Problem,
    chat_of,
    first_problems,
    is_solved,
    problems,
    problems_to_practise,
    write_prompts,
)
from examples.arithmetic.tokenizer import build_tokenizer

MAX_LENGTH = 2048
TRAIN_ROWS, HELDOUT_ROWS = 4096, 1024
TARGET_ACCURACY = 0.42
MAX_STEPS = 1000
PROBE_ROWS = 512
PROBE_EVERY = 5
PROBE_BELOW_LOSS = 0.048
"""Loss per token above which no model solves enough to be worth probing."""
IGNORED = -100
MAX_NEW_TOKENS = 64

Echo = Callable[[str], None]


def ensure(directory: Path, seed: int = 0, echo: Echo = print) -> Path:
    """Make `directory/model`, `train.jsonl` and `heldout.jsonl` unless they are there; return the path
    of the model.

    The model is renamed into place last, so a directory with a model in it is complete. Raises ValueError
    where the directory holds a model of another seed, RuntimeError if training never gets to the target.
    """
    model_path = directory / "model"
    if model_path.exists():
        made_with = json.loads((model_path / "warm_start.json").read_text())["seed"]
        if made_with != seed:
            raise ValueError(
                f"{directory} holds a warm start made with seed {made_with}, not {seed}: "
                "use that seed, or another directory"
            )
        echo(f"warm start: found in {model_path}")
        return model_path
    directory.mkdir(parents=True, exist_ok=True)
    heldout = first_problems("heldout", HELDOUT_ROWS)
    write_prompts(directory / "train.jsonl", problems_to_practise(TRAIN_ROWS))
    write_prompts(directory / "heldout.jsonl", heldout)

    tokenizer, started = build_tokenizer(MAX_LENGTH), time.perf_counter()
    model = build_model(tokenizer, seed)
    steps = 0
    for steps, loss, probed in train(model, tokenizer, seed):
        if probed is None:
            echo(f"warm start: step {steps}, loss {loss:.3f}, {time.perf_counter() - started:.0f} s")
        else:
            echo(f"warm start: step {steps}, loss {loss:.3f}, expected accuracy {probed:.3f}")
    record = {
        "seed": seed,
        "steps": steps,
        "seconds": round(time.perf_counter() - started, 1),
        "heldout": {
            "sampled": accuracy(model, tokenizer, heldout[:PROBE_ROWS], sample=True),
            "greedy": accuracy(model, tokenizer, heldout[:PROBE_ROWS], sample=False),
        },
    }
    echo(f"warm start: {json.dumps(record)}")
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory(dir=directory) as unfinished:
        made = Path(unfinished) / "model"
        model.save_pretrained(made)
        tokenizer.save_pretrained(made)
        (made / "warm_start.json").write_text(json.dumps(record) + "\n")
        made.rename(model_path)
    return model_path


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """A Llama of 1.4 million random parameters for this tokenizer."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=3,
        num_key_value_heads=3,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = LlamaForCausalLM(config)
    # On CPUs the fused attention kernel's backward pass would be the slowest part of a step at these lengths.
    model.set_attn_implementation("eager")
    return model


def train(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, seed: int, batch_size: int = 64
) -> Iterator[tuple[int, float, float | None]]:
    """Train on fresh problems until the target, yielding (step, loss per token, expected accuracy if probed).

    Plain AdamW, the optimizer that PPO goes on with. Muon takes two thirds of the time to the same accuracy,
    but PPO then learns several times slower from where it ends.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0, fused=True)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.05, total_iters=20)
    probe = supervised_batch(tokenizer, first_problems("heldout", PROBE_ROWS))
    fresh, recent_loss, probed_at = problems("train", seed=seed + 1), math.inf, 0
    for step in range(1, MAX_STEPS + 1):
        token_ids, labels = supervised_batch(tokenizer, list(itertools.islice(fresh, batch_size)))
        loss = -token_logprobs(model, token_ids, labels).sum() / (labels != IGNORED).sum()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        warm_up.step()
        recent_loss = loss.item() if step == 1 else 0.8 * recent_loss + 0.2 * loss.item()
        if recent_loss < PROBE_BELOW_LOSS and step - probed_at >= PROBE_EVERY:
            probed_at = step
            expected = expected_accuracy(model, *probe)
            yield step, recent_loss, expected
            if expected >= TARGET_ACCURACY:
                return
        elif step == 1 or step % 20 == 0:
            yield step, recent_loss, None
    raise RuntimeError(f"the warm start did not reach accuracy {TARGET_ACCURACY} in {MAX_STEPS} steps")


def supervised_batch(tokenizer: PreTrainedTokenizerFast, rows: list[Problem]) -> tuple[Tensor, Tensor]:
    """Token ids (B, S) of question and solution, padded on the right; labels (B, S) on the solution alone."""
    questions = [prompt_ids(tokenizer, row) for row in rows]
    solutions = [tokenizer.encode(row.solution + tokenizer.eos_token) for row in rows]
    length = max(len(q) + len(s) for q, s in zip(questions, solutions, strict=True))
    token_ids = torch.full((len(rows), length), tokenizer.pad_token_id)
    labels = torch.full((len(rows), length), IGNORED)
    for row, (question, solution) in enumerate(zip(questions, solutions, strict=True)):
        end = len(question) + len(solution)
        token_ids[row, :end] = torch.tensor(question + solution)
        labels[row, len(question) : end] = torch.tensor(solution)
    return token_ids, labels


def prompt_ids(tokenizer: PreTrainedTokenizerFast, problem: Problem) -> list[int]:
    """Token ids of the question up to where the assistant answers."""
    text = tokenizer.apply_chat_template(chat_of(problem), tokenize=False, add_generation_prompt=True)
    return tokenizer.encode(text, add_special_tokens=False)


def token_logprobs(model: LlamaForCausalLM, token_ids: Tensor, labels: Tensor) -> Tensor:
    """Log-probability of each labelled token, (B, S-1), zero where there is no label.

    Padding is on the right and attention is causal, so no padding mask is needed.
    """
    with torch.autocast("cpu", torch.bfloat16, enabled=has_fast_bfloat16()):
        logits = model(input_ids=token_ids, use_cache=False).logits[:, :-1]
    return -nn.functional.cross_entropy(
        logits.float().transpose(1, 2), labels[:, 1:], reduction="none", ignore_index=IGNORED
    )


def has_fast_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 matrices in hardware."""
    return bool(torch.cpu.get_capabilities().get("avx512_bf16"))


@torch.no_grad()
def expected_accuracy(model: LlamaForCausalLM, token_ids: Tensor, labels: Tensor) -> float:
    """Mean probability of the whole solution: what sampling would score, without its noise, in one pass."""
    return token_logprobs(model, token_ids, labels).sum(dim=1).exp().mean().item()


@torch.no_grad()
def accuracy(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, rows: list[Problem], *, sample: bool
) -> float:
    """Share of the problems solved by generating, sampled at temperature 1 or greedily."""
    solved = 0
    for start in range(0, len(rows), 256):
        chunk = rows[start : start + 256]
        questions = [{"input_ids": prompt_ids(tokenizer, row)} for row in chunk]
        padded = tokenizer.pad(questions, padding_side="left", return_tensors="pt")
        generated = model.generate(  # type: ignore[misc]
            **padded, max_new_tokens=MAX_NEW_TOKENS, do_sample=sample, top_k=0 if sample else None
        )
        responses = tokenizer.batch_decode(
            generated[:, padded["input_ids"].shape[1] :], skip_special_tokens=True
        )
        solved += sum(is_solved(text, row.answer) for text, row in zip(responses, chunk, strict=True))
    return solved / len(rows)
