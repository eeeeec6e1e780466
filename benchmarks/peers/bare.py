"""What an iteration's generation and rewards take without streams, HTTP and other processes.

The same engine with the settings of ours.toml completes 128 prompts, and the reward function is called on
what comes, in this one process. What an iteration of the pipeline takes beyond this and the learner's own
passes is the cost of streams, HTTP and weight updates together.
"""

import argparse
import asyncio
import json
import os
import statistics
import time
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.peers.ours import CONFIG

if TYPE_CHECKING:
    from services.rollout.vllm_engine import VllmEngine
    from shared.experience import Completion, Prompt


def main() -> None:
    options = _options()
    table = tomllib.loads(CONFIG.read_text(encoding="utf-8"))["rollout"] | {"dtype": options.rollout_dtype}
    table |= dict(pair.split("=", 1) for pair in options.set)
    # As the rollout service sets them, before torch and vLLM are imported.
    os.environ["OMP_NUM_THREADS"] = str(table["threads"])
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from services.rollout.config import RolloutConfig
    from services.rollout.vllm_engine import VllmEngine

    prompts = _prompts(options.start, options.completions * (options.repeats + 1))
    engine = VllmEngine(options.start / "model", RolloutConfig.model_validate(table), seed=0)
    try:
        generate, reward, tokens = asyncio.run(measure(engine, prompts, options.completions))
    finally:
        engine.close()
    facts = {"generate": generate, "reward": reward, "tokens": tokens, "settings": table}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(facts, indent=1, default=str) + "\n", encoding="utf-8")
    print(
        f"{options.completions} completions: generate {generate:.3f} s, {tokens / generate:,.0f} tokens/s; "
        f"reward {reward:.4f} s",
        flush=True,
    )
    os._exit(0)  # as the service: what vLLM does when Python takes it apart is an ignored error


async def measure(engine: "VllmEngine", prompts: list["Prompt"], size: int) -> tuple[float, float, float]:
    """Median seconds of generating and of scoring a batch, and its median tokens; the first one warms up."""
    await engine.llm.update_weight_version("0")  # the engine names versions only once it has had an update
    generate, reward, tokens = [], [], []
    for start in range(0, len(prompts), size):
        batch = prompts[start : start + size]
        started = time.perf_counter()
        groups = await asyncio.gather(*(engine.generate(prompt) for prompt in batch))
        generated = time.perf_counter()
        score(batch, [completions[0] for completions in groups])
        generate.append(generated - started)
        reward.append(time.perf_counter() - generated)
        tokens.append(sum(len(completions[0].token_ids) for completions in groups))
    return (
        statistics.median(generate[1:]),
        statistics.median(reward[1:]),
        statistics.median(tokens[1:]),
    )


def score(prompts: list["Prompt"], completions: list["Completion"]) -> list[float]:
    from services.reward.rules.colossalchat import TaggedConfig, gsm8k_reward_fn
    from shared.scoring import ScoreItem

    rule = TaggedConfig(rule="gsm8k_reward_fn")
    return [
        gsm8k_reward_fn(ScoreItem(response=completion.text, ground_truth=prompt.ground_truth), rule)
        for prompt, completion in zip(prompts, completions, strict=True)
    ]


def _prompts(start: Path, count: int) -> list["Prompt"]:
    from transformers import AutoTokenizer

    from benchmarks.peers.prompts import read_rows
    from shared.experience import Int32Array, Prompt, Sampling

    rows = read_rows(start / "train.jsonl", AutoTokenizer.from_pretrained(start / "model"))
    return [
        Prompt(
            id=str(index),
            epoch=0,
            index=index,
            n=1,
            issued_version=0,
            text="",
            token_ids=Int32Array(row.token_ids),
            sampling=Sampling(max_tokens=64),
            ground_truth=row.answer,
        )
        for index, row in enumerate(rows[:count])
    ]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.bare", description=__doc__)
    parser.add_argument("--start", type=Path, required=True, help="folder with model/ and the prompt files")
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the result")
    parser.add_argument("--rollout-dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--completions", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of [rollout]")
    return parser.parse_args()


if __name__ == "__main__":
    main()
