"""A stream worker without vLLM: an engine that answers or fails on command, and real weights and Redis."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from transformers import LlamaForCausalLM

from services.rollout.engine import EngineLoad
from services.rollout.metrics import RolloutMetrics
from services.rollout.weight_files import ModelShape
from services.rollout.weight_folder import WeightFolder
from services.rollout.weight_store import WeightStore
from services.rollout.worker import StreamWorker
from shared.experience import Completion, Float32Array, Int32Array, Prompt, VersionSpan
from shared.stream import Streams
from tests.rollout.asking import Asker
from tests.rollout.server import make_update
from tests.rollout.tiny_model import tensors_of

Models = tuple[Path, LlamaForCausalLM]


class ScriptedEngine:
    """Answers every prompt with its version, or raises what it is told to."""

    max_model_len = 512
    dtype = "float32"
    dead = False

    def __init__(self) -> None:
        self.version = -1
        self.calls = 0
        self.failures: list[Exception] = []
        self.update_failure: Exception | None = None
        self.busy = EngineLoad(steps=1, running=0, waiting=0, kv_cache_use=0.0, preempted=0, most_running=10)
        self.gate = asyncio.Event()
        self.gate.set()

    async def generate(self, prompt: Prompt) -> list[Completion]:
        self.calls += 1
        await self.gate.wait()
        if self.failures:
            raise self.failures.pop(0)
        spans = [VersionSpan(self.version, 1)]
        one = Completion(token_ids=Int32Array([5]), logprobs=Float32Array([-1.0]), text="!",
                         finish_reason="stop", version_spans=spans)  # fmt: skip
        return [one] * prompt.n

    def load(self) -> EngineLoad:
        return self.busy

    async def replace_weights(self, new: Sequence[Path], version: int, old: Sequence[Path]) -> None:
        assert all(path.is_file() for path in [*new, *old])
        if self.update_failure:
            raise self.update_failure
        self.version = version

    def close(self) -> None:
        return None


class Room:
    """A worker with a scripted engine and a real weight store on a real Redis."""

    def __init__(self, streams: Streams, models: Models, folder: Path) -> None:
        self.asker = Asker(streams)
        self.engine = ScriptedEngine()
        self.model = models[1]
        self.weights = WeightStore(self.engine, ModelShape(models[0]), WeightFolder(folder), RolloutMetrics())

    def worker(
        self, name: str, max_groups: int = 4, may_claim: Callable[[], bool] = lambda: True
    ) -> StreamWorker:
        return StreamWorker(
            self.asker.streams, name, self.engine, self.weights, max_groups, RolloutMetrics(), may_claim
        )

    async def push(
        self, version: int, epoch: int = 1, of: LlamaForCausalLM | None = None, replaces: str | None = None
    ) -> None:
        manifest, payloads = make_update(tensors_of(of or self.model), version, epoch)
        manifest = manifest.model_copy(update={"replaces": replaces})
        await self.weights.open(manifest)
        for part, payload in enumerate(payloads):

            async def chunks(data: bytes = payload) -> Any:
                yield data

            await self.weights.receive(version, part, chunks())
        await self.weights.commit(version)


async def until(condition: Callable[[], Any], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.01)


async def with_worker(room: Room, name: str, body: Coroutine[Any, Any, None]) -> None:
    task = asyncio.create_task(room.worker(name).run())
    try:
        await body
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
