"""`python -m benchmarks.sleepers rollout SECONDS SLOTS --config run.toml`, or `learner SECONDS ...`.

A service as it is, but for the part that computes, which sleeps instead. So two sides that would run on
machines of their own do not share the cores of this one. The engine answers SLOTS prompts at a time and takes
SECONDS for each; an update takes SECONDS. Everything else is the service's own code.
"""

import asyncio
import runpy
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.stand_in import replace_vllm
from services.rollout.config import RolloutConfig
from services.rollout.engine import EngineLoad
from shared.experience import Completion, Float32Array, Int32Array, Prompt, VersionSpan

_TOKEN = 40
"""Of the vocabulary of every model here."""


class SleepingEngine:
    """Stands in for `VllmEngine`, and is made like it. Its completions are as long as they may be."""

    dtype = "float32"
    dead = False
    seconds = 0.0
    """It takes to answer a prompt, whatever else it is answering."""
    slots = 1
    """Prompts that it answers at a time; others wait."""

    def __init__(self, model: Path, config: RolloutConfig, seed: int) -> None:
        self.max_model_len = config.max_model_len or 256
        self._version = -1
        self._free = asyncio.Semaphore(self.slots)

    async def generate(self, prompt: Prompt) -> list[Completion]:
        """All completions at once; tokens of two versions where weights were replaced meanwhile."""
        async with self._free:
            before = self._version
            await asyncio.sleep(self.seconds)
        tokens = prompt.sampling.max_tokens
        spans = [VersionSpan(self._version, tokens)]
        if before != self._version and tokens > 1:
            spans = [VersionSpan(before, tokens // 2), VersionSpan(self._version, tokens - tokens // 2)]
        return [
            Completion(
                token_ids=Int32Array([_TOKEN] * tokens),
                logprobs=Float32Array([-1.0] * tokens),
                text="?",
                finish_reason="length",
                version_spans=spans,
            )
            for _ in range(prompt.n)
        ]

    async def replace_weights(self, new: Sequence[Path], version: int, old: Sequence[Path]) -> None:
        self._version = version

    def load(self) -> EngineLoad:
        """Never too much, so that as many prompts are in flight as are allowed."""
        return EngineLoad(
            steps=1, running=0, waiting=0, kv_cache_use=0.0, preempted=0, most_running=self.slots
        )

    def close(self) -> None:
        pass


def asleep(work: Any, seconds: float) -> Any:
    """`work` that is done once; every later call sleeps so long and gives what the first one gave."""
    done: list[Any] = []

    def slow(*arguments: Any, **named: Any) -> Any:
        if done:
            time.sleep(seconds)
        else:
            done.append(work(*arguments, **named))
        return done[0]

    return slow


def _put_sleeping_engine_in_place(seconds: float, slots: int) -> None:
    """Before anything of the rollout service imports vLLM."""
    SleepingEngine.seconds, SleepingEngine.slots = seconds, slots
    replace_vllm(SleepingEngine)


def _let_updates_sleep(seconds: float) -> None:
    from services.learner import ppo

    ppo.update = asleep(ppo.update, seconds)


def main() -> None:
    service, seconds, *arguments = sys.argv[1:]
    if service == "rollout":
        slots, *arguments = arguments
        _put_sleeping_engine_in_place(float(seconds), int(slots))
    else:
        _let_updates_sleep(float(seconds))
    sys.argv = [f"services.{service}", *arguments]
    runpy.run_module(f"services.{service}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
