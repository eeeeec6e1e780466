"""vLLM behind the `Engine` protocol: one asynchronous engine, on CPU or GPU."""

import asyncio
import os
import time
import uuid
from collections.abc import Coroutine, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.exceptions import VLLMClientError
from vllm.inputs import tokens_input
from vllm.outputs import CompletionOutput
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from services.rollout.completions import all_completions, make_completion
from services.rollout.config import RolloutConfig
from services.rollout.engine import EngineDead, EngineLoad, ModelBroken, PromptRefused, UpdateFailed
from services.rollout.salted_llm import SaltedLLM
from services.rollout.sampling import sampling_parameters
from services.rollout.stops import end_of_first_stop
from services.rollout.vllm_stats import StepStats
from shared.experience import Completion, Prompt, StopSequence, VersionSpan

_GIB = 1 << 30
_CPU_KV_CACHE_GIB = 1.0
_SHUTDOWN_SECONDS = 1.0


def engine_arguments(model: Path, config: RolloutConfig, seed: int) -> AsyncEngineArgs:
    """What vLLM is started with, where that is not its own default."""
    on_cpu = current_platform.is_cpu()
    cache_gib = config.kv_cache_gib or (_CPU_KV_CACHE_GIB if on_cpu else None)
    arguments = AsyncEngineArgs(
        model=str(model),
        served_model_name=model.name,
        dtype=config.dtype,
        max_model_len=config.max_model_len,  # type: ignore[arg-type]
        seed=seed,
        enforce_eager=on_cpu if config.enforce_eager is None else config.enforce_eager,
        gpu_memory_utilization=config.gpu_memory_utilization,
        kv_cache_memory_bytes=int(cache_gib * _GIB) if cache_gib else None,
        tensor_parallel_size=config.tensor_parallel_size,
        # The distribution that tokens are drawn from: after temperature, top-p and top-k.
        logprobs_mode="processed_logprobs",
        worker_extension_cls="services.rollout.weight_loader.WeightLoader",
        use_tqdm_on_load=False,
    )
    if on_cpu:
        # The class and not "uni", which vLLM turns back into a busy-polling process per worker.
        arguments.distributed_executor_backend = UniProcExecutor
        arguments.block_size = 32  # the smallest: prompts share whole blocks only
    return arguments


class VllmEngine:
    """An `Engine`, and the process that it runs in. Make it before there is an event loop or a thread: the
    process is forked on CPU."""

    def __init__(self, model: Path, config: RolloutConfig, seed: int) -> None:
        vllm_config = engine_arguments(model, config, seed).create_engine_config()
        if current_platform.is_cpu():
            # vLLM asks for a spawned process, which imports everything a second time: 10 s instead of 3.
            os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
            if vllm_config.model_config.enforce_eager:
                os.environ["TORCHDYNAMO_DISABLE"] = "1"  # vLLM's sampler would compile all the same
        # Without vLLM's own loggers, but with ours.
        llm = SaltedLLM.from_vllm_config(vllm_config, stat_loggers=[StepStats], disable_log_stats=True)
        assert isinstance(llm, SaltedLLM)
        self.llm = llm
        assert self.llm.logger_manager is not None
        (self._stats,) = (
            logger for logger in self.llm.logger_manager.stat_loggers if isinstance(logger, StepStats)
        )
        self._recomputes = config.kv_cache_at_update == "recompute"
        self._tokenizer = self.llm.get_tokenizer()
        self.max_model_len = int(self.llm.model_config.max_model_len)
        self.dtype = str(self.llm.model_config.dtype).removeprefix("torch.")

    async def generate(self, prompt: Prompt) -> list[Completion]:
        """See `Engine.generate`."""
        sampling, id = prompt.sampling, f"{prompt.id}-{uuid.uuid4().hex[:8]}"
        stops = [stop for stop in sampling.stop_token_ids if len(stop) > 1]
        outputs: Sequence[CompletionOutput | Exception]
        try:
            if stops:
                # Watched and ended one by one; with the seeds that vLLM gives the completions of one request.
                seeds = [None if sampling.seed is None else sampling.seed + i for i in range(prompt.n)]
                outputs = await _each(
                    self._generate_one(prompt, seed, stops, f"{id}-{i}") for i, seed in enumerate(seeds)
                )
            else:
                tokens, parameters = (
                    tokens_input(list(prompt.token_ids)),
                    sampling_parameters(sampling, prompt.n),
                )
                answers = [answer async for answer in self.llm.generate(tokens, parameters, id)]
                drawn = sorted(answers[-1].outputs, key=lambda output: output.index)
                outputs = drawn
        except (VLLMClientError, ValueError) as error:
            raise PromptRefused(str(error)) from error
        except EngineDeadError as error:
            raise EngineDead("the vLLM engine has died; its log says why") from error
        return all_completions(outputs, lambda output: self._completion(output, stops))

    async def _generate_one(
        self, prompt: Prompt, seed: int | None, stops: Sequence[StopSequence], id: str
    ) -> CompletionOutput:
        """One completion, aborted when it has come to the end of a stop sequence."""
        parameters = sampling_parameters(prompt.sampling, n=1)
        parameters.seed = seed
        parameters.output_kind = RequestOutputKind.CUMULATIVE
        seen, aborted = 0, False
        async for answer in self.llm.generate(tokens_input(list(prompt.token_ids)), parameters, id):
            (output,) = answer.outputs
            if not (answer.finished or aborted) and end_of_first_stop(output.token_ids, stops, seen):
                await self.llm.abort(id)  # the last answer then comes with all that there is
                aborted = True
            seen = len(output.token_ids)
        return output

    def _completion(self, output: CompletionOutput, stops: Sequence[StopSequence]) -> Completion:
        assert output.logprobs is not None and output.weight_versions is not None
        at_each: Any = output.logprobs  # one dictionary per token
        tokens = list(output.token_ids)
        logprobs = [at[token].logprob for at, token in zip(at_each, tokens, strict=True)]
        spans = [VersionSpan(int(span.version), span.end - span.start) for span in output.weight_versions]
        decode = partial(self._tokenizer.decode, skip_special_tokens=True)
        return make_completion(tokens, logprobs, spans, output.finish_reason, stops, decode)

    async def replace_weights(self, new: Sequence[Path], version: int, old: Sequence[Path]) -> None:
        """See `Engine.replace_weights`."""
        try:
            # `llm.pause_generation` is this and a sleep of 20 ms, so that outputs on their way arrive first.
            await self.llm.engine_core.pause_scheduler_async(mode="keep", clear_cache=False)
            # What is cached by now was computed from other weights: no request that comes from here on may
            # find it. The version would not do as salt, since a repair has the same.
            self.llm.salt = uuid.uuid4().hex
            failure = await self._load(new)
            if failure is None:
                await self.llm.update_weight_version(str(version))
            elif await self._load(old):
                raise ModelBroken(f"vLLM could load neither version {version} nor the old weights: {failure}")
            if self._recomputes:
                # Requests in flight hold cache blocks, and a reset that leaves them alone silently does
                # nothing: they are preempted and computed again.
                await self.llm.reset_prefix_cache(reset_running_requests=True)
                self._stats.load.settle(time.monotonic())
            await self.llm.resume_generation()
        except EngineDeadError as error:
            raise EngineDead("the vLLM engine died during a weight update; its log says why") from error
        except ModelBroken:
            raise
        except Exception as error:  # half an update, and it may still be paused
            raise ModelBroken(
                f"vLLM did not get through the update to version {version}: {error!r}"
            ) from error
        if failure is not None:
            raise UpdateFailed(f"vLLM could not load version {version}, the old weights are back: {failure}")

    async def _load(self, files: Sequence[Path]) -> Exception | None:
        """Load a whole set of weights; what went wrong, or None."""
        try:
            await self.llm.collective_rpc("load_safetensors", args=([str(file) for file in files],))
        except EngineDeadError:
            raise
        except Exception as error:  # whatever a model's own loader raises
            return error
        return None

    def load(self) -> EngineLoad:
        """See `Engine.load`."""
        return self._stats.load.take()

    @property
    def dead(self) -> bool:
        """See `Engine.dead`."""
        return bool(self.llm.errored)

    def close(self) -> None:
        """See `Engine.close`."""
        self.llm.shutdown(timeout=_SHUTDOWN_SECONDS)


async def _each(works: Iterable[Coroutine[Any, Any, CompletionOutput]]) -> list[CompletionOutput | Exception]:
    """What each of them returns or fails with, in order. What none can be asked again ends the others.

    Raises:
    VLLMClientError, ValueError, EngineDeadError: as one of them did.
    """
    final = (VLLMClientError, ValueError, EngineDeadError)

    async def outcome(work: Coroutine[Any, Any, CompletionOutput]) -> CompletionOutput | Exception:
        try:
            return await work
        except final:
            raise
        except Exception as error:  # whatever else vLLM raises
            return error

    tasks = [asyncio.ensure_future(outcome(work)) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
