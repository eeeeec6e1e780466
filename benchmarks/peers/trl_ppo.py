"""TRL's side: its PPO trainer on the demo task, timed by phase. Runs in the environment of setup.sh.

TRL is used as it is. Its reward model is a module, as it asks for, that decodes the tokens and applies our
own reward function; its phases are timed by wrapping the functions that its training loop calls. Evaluations
run in a callback between iterations and are not counted.
"""

import argparse
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    TrainerCallback,
)
from trl.experimental.ppo import PPOConfig, PPOTrainer, ppo_trainer

from benchmarks.peers.prompts import Row, read_rows
from benchmarks.peers.record import Accuracy, Iteration, Record
from services.reward.rules.colossalchat import TaggedConfig, gsm8k_reward_fn
from shared.scoring import ScoreItem

MAX_NEW_TOKENS = 64
REWARD_SCALE = 0.1
RULE = TaggedConfig(rule="gsm8k_reward_fn")


class Echo(nn.Module):
    """The backbone that TRL asks for: its hidden states are the token ids."""

    def forward(self, input_ids: Tensor, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(hidden_states=(input_ids,))


class RuleReward(nn.Module):
    """Our reward function as the reward model that TRL asks for. No ground truth reaches it, so it is looked
    up by the prompt."""

    base_model_prefix = "backbone"

    def __init__(self, tokenizer: Any, rows: list[Row]) -> None:
        super().__init__()
        self.backbone = Echo()
        self._tokenizer = tokenizer
        self._answers = {tuple(row.token_ids): row.answer for row in rows}

    def score(self, ids: Tensor) -> Tensor:
        """The reward of each row, at every position. [B, S, 1]"""
        rewards = torch.tensor([self._reward(row) for row in ids.tolist()])
        return rewards[:, None, None].expand(*ids.shape, 1) * REWARD_SCALE

    def _reward(self, ids: list[int]) -> float:
        tokenizer = self._tokenizer
        start = ids.index(tokenizer.bos_token_id)
        end = ids.index(tokenizer.convert_tokens_to_ids("<|assistant|>")) + 1
        response = tokenizer.decode(ids[end:], skip_special_tokens=True)
        return reward(response, self._answers[tuple(ids[start:end])])


def reward(response: str, answer: str) -> float:
    return gsm8k_reward_fn(ScoreItem(response=response, ground_truth=answer), RULE)


class Clock(TrainerCallback):
    """Seconds of each phase of each iteration, and evaluations between them."""

    def __init__(
        self, record: Record, evaluate_every: int, evaluate: Callable[[], tuple[float, float]]
    ) -> None:
        self._record = record
        self._every = evaluate_every
        self._evaluate = evaluate
        self._phases: dict[str, float] = {}
        self._training_since: float | None = None

    def watch(self, trainer: PPOTrainer) -> None:
        """Wrap what the training loop of this trainer calls."""
        generation, forward, score = (
            ppo_trainer.batch_generation,
            ppo_trainer.forward,
            ppo_trainer.get_reward,
        )

        def timed_forward(model: nn.Module, *arguments: Any) -> Any:
            if model is trainer.ref_model:
                return self._timed("ref", forward, model, *arguments)
            if self._training_since is None:
                self._training_since = time.perf_counter()
            return forward(model, *arguments)

        def timed_score(model: nn.Module, *arguments: Any) -> Any:
            name = "reward" if model is trainer.reward_model else "values"
            return self._timed(name, score, model, *arguments)

        ppo_trainer.batch_generation = lambda *arguments: self._timed("generate", generation, *arguments)
        ppo_trainer.forward = timed_forward
        ppo_trainer.get_reward = timed_score

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._started = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        now = time.perf_counter()
        assert self._training_since is not None
        phases = {name: self._phases[name] for name in ("generate", "ref", "values", "reward")}
        phases["train"] = now - self._training_since
        seconds = now - self._started
        phases["other"] = seconds - sum(phases.values())
        self._record.iterations.append(Iteration(seconds, phases))
        done = len(self._record.iterations)
        print(f"iteration {done}: {seconds:.2f} s", flush=True)
        if self._every and done % self._every == 0:
            self.evaluate()
        self._phases, self._training_since = {}, None
        self._started = time.perf_counter()

    def evaluate(self) -> None:
        accuracy = Accuracy(len(self._record.iterations), *self._evaluate())
        print(f"greedy {accuracy.greedy:.3f}, sampled {accuracy.sampled:.3f}", flush=True)
        self._record.accuracy.append(accuracy)

    def _timed(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        started = time.perf_counter()
        try:
            return function(*arguments)
        finally:
            self._phases[name] = self._phases.get(name, 0.0) + time.perf_counter() - started


@torch.no_grad()
def accuracy(model: Any, tokenizer: Any, rows: list[Row], sample: bool) -> float:
    """Share of the rows that earn the full reward."""
    solved = 0
    for start in range(0, len(rows), 128):
        chunk = rows[start : start + 128]
        padded = tokenizer.pad(
            [{"input_ids": row.token_ids} for row in chunk], padding_side="left", return_tensors="pt"
        )
        generated = model.generate(
            **padded,
            max_new_tokens=MAX_NEW_TOKENS,
            do_sample=sample,
            top_k=0 if sample else None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
        texts = tokenizer.batch_decode(generated[:, padded["input_ids"].shape[1] :], skip_special_tokens=True)
        solved += sum(reward(text, row.answer) == 10.0 for text, row in zip(texts, chunk, strict=True))
    return solved / len(rows)


def main() -> None:
    options = _options()
    # TRL's own `bf16` does nothing on a CPU. Accelerate reads this when the trainer makes it.
    os.environ["ACCELERATE_MIXED_PRECISION"] = "bf16" if options.precision == "bfloat16" else "no"
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    model_path = options.start / "model"
    tokenizer = AutoTokenizer.from_pretrained(model_path, padding_side="left")
    train = read_rows(options.start / "train.jsonl", tokenizer)
    heldout = read_rows(options.start / "heldout.jsonl", tokenizer)[: options.heldout_rows]
    policy, reference = (AutoModelForCausalLM.from_pretrained(model_path) for _ in range(2))
    critic = AutoModelForSequenceClassification.from_pretrained(model_path, num_labels=1)

    record = Record(
        options.contender, options.seed, {key: str(value) for key, value in vars(options).items()}
    )
    clock = Clock(
        record,
        options.evaluate_every,
        lambda: (accuracy(policy, tokenizer, heldout, False), accuracy(policy, tokenizer, heldout, True)),
    )
    dataset = Dataset.from_list([{"input_ids": row.token_ids} for row in train])
    trainer = PPOTrainer(
        args=_settings(options),
        processing_class=tokenizer,
        model=policy,
        ref_model=reference,
        reward_model=RuleReward(tokenizer, train),
        value_model=critic,
        train_dataset=dataset,
        eval_dataset=dataset.select(range(1)),  # unused, but it makes a loader of it
        callbacks=[clock],
    )
    clock.watch(trainer)
    if options.evaluate_every:
        clock.evaluate()
    trainer.train()
    record.settings["mixed_precision"] = trainer.accelerator.mixed_precision
    record.settings["peak_rss_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    record.write(options.out)


def _settings(options: argparse.Namespace) -> PPOConfig:
    """The settings of ours.toml in TRL's words."""
    completions = 128
    return PPOConfig(
        output_dir=str(options.out.with_suffix("")),
        seed=options.seed,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        # With gradient accumulation the optimizer would step once per accumulation, whatever the minibatches.
        per_device_train_batch_size=completions,
        gradient_accumulation_steps=1,
        num_mini_batches=4,
        num_ppo_epochs=2,
        total_episodes=completions * options.iterations,
        local_rollout_forward_batch_size=completions,
        learning_rate=3e-5,
        lr_scheduler_type="constant",
        gamma=1.0,
        lam=1.0,
        kl_coef=0.01,
        kl_estimator="k1",
        cliprange=0.2,
        cliprange_value=0.2,
        vf_coef=0.5,
        temperature=1.0,
        response_length=MAX_NEW_TOKENS,
        stop_token="eos",
        num_sample_generations=0,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.trl_ppo", description=__doc__)
    parser.add_argument("--start", type=Path, required=True, help="folder with model/ and the prompt files")
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the record")
    parser.add_argument("--contender", default="trl")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--evaluate-every", type=int, default=2, help="iterations; 0 is never")
    parser.add_argument("--heldout-rows", type=int, default=256)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    return parser.parse_args()


if __name__ == "__main__":
    main()
