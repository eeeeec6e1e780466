"""A small engine behind the `Engine` protocol: it samples from the weights that were pushed, on its own.

What it draws depends on the prompt's id and the weights alone, so a synchronous run that was disturbed must
end with the weights of one that was not.
"""

import asyncio
import hashlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from tokenizers import Tokenizer

from services.rollout.config import RolloutConfig
from services.rollout.engine import EngineLoad, PromptRefused, UpdateFailed
from shared.experience import Completion, Float32Array, Int32Array, Prompt, VersionSpan
from tests.chaos.decoder import Decoder, Floats

TOKEN_SECONDS = "CHAOS_TOKEN_SECONDS"
"""Environment variable: how long the engine rests after each token, so that there is a time to strike."""


DEADLY = "DEADLY"
"""A prompt with this word kills the process that answers it, as a bug of an engine may."""


class SmallEngine:
    """Stands in for `VllmEngine`, with the same way of being made."""

    dtype = "float32"

    def __init__(self, model: Path, config: RolloutConfig, seed: int) -> None:
        self.max_model_len = config.max_model_len or 256
        self._folder = model
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._end = self._tokenizer.token_to_id("</s>")
        self._served: tuple[Decoder, int] | None = None
        self._seconds = float(os.environ.get(TOKEN_SECONDS, 0))

    async def generate(self, prompt: Prompt) -> list[Completion]:
        if DEADLY in prompt.text:
            os.kill(os.getpid(), signal.SIGKILL)
        length = len(prompt.token_ids)
        if length + prompt.sampling.max_tokens > self.max_model_len:
            raise PromptRefused(f"{length} tokens and {prompt.sampling.max_tokens} new ones are too many")
        seed = int.from_bytes(hashlib.blake2b(prompt.id.encode(), digest_size=8).digest())
        chances = np.random.default_rng(seed).random((prompt.n, prompt.sampling.max_tokens))
        tokens = np.tile(np.array(prompt.token_ids, dtype=np.int64), (prompt.n, 1))
        logprobs = np.zeros((prompt.n, 0), dtype=np.float32)
        versions: list[int] = []
        for chance in chances.T:
            assert self._served, "prompts are answered only after the first push"
            decoder, version = self._served
            logits = decoder.next_logits(tokens) / np.float32(prompt.sampling.temperature)
            drawn, drawn_logprobs = _draw(logits, chance)
            tokens = np.concatenate([tokens, drawn[:, None]], axis=1)
            logprobs = np.concatenate([logprobs, drawn_logprobs[:, None]], axis=1)
            versions.append(version)
            await asyncio.sleep(self._seconds)
        rows = zip(tokens[:, length:], logprobs, strict=True)
        return [self._completion(drawn, known, versions) for drawn, known in rows]

    def _completion(self, tokens: NDArray[np.int64], logprobs: Floats, versions: list[int]) -> Completion:
        ends = np.flatnonzero(tokens == self._end)
        stop = int(ends[0]) + 1 if len(ends) else len(tokens)
        spans: list[VersionSpan] = []
        for version in versions[:stop]:
            known = spans.pop().tokens if spans and spans[-1].version == version else 0
            spans.append(VersionSpan(version, known + 1))
        return Completion(
            token_ids=Int32Array(tokens[:stop].tolist()),
            logprobs=Float32Array(logprobs[:stop].tolist()),
            text=self._tokenizer.decode(tokens[:stop].tolist(), skip_special_tokens=True),
            finish_reason="stop" if len(ends) else "length",
            version_spans=spans,
        )

    async def replace_weights(self, new: Sequence[Path], version: int, old: Sequence[Path]) -> None:
        try:
            self._served = Decoder(self._folder, new), version
        except (OSError, SafetensorError) as error:
            raise UpdateFailed(str(error)) from error

    def load(self) -> EngineLoad:
        # It has no limit to come to.
        return EngineLoad(steps=1, running=0, waiting=0, kv_cache_use=0.0, preempted=0, most_running=1)

    @property
    def dead(self) -> bool:
        return False

    def close(self) -> None:
        pass


def _draw(logits: Floats, chance: NDArray[np.float64]) -> tuple[NDArray[np.int64], Floats]:
    """A token per row by inverting the distribution function at `chance`, and its log-probability."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    logprobs = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    below = np.cumsum(np.exp(logprobs), axis=-1) < chance[:, None]
    drawn = np.minimum(below.sum(axis=-1), logits.shape[-1] - 1)
    return drawn, np.take_along_axis(logprobs, drawn[:, None], axis=-1)[:, 0].astype(np.float32)
