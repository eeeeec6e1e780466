"""One rollout process: engine, weights, HTTP and stream worker, started and stopped together."""

import asyncio
import contextlib
import logging
import math
import signal
import socket
from collections.abc import Iterator
from typing import Any

import redis
import uvicorn

from services.rollout.app import make_app
from services.rollout.config import RolloutSettings
from services.rollout.engine import EngineDead, ModelBroken
from services.rollout.metrics import RolloutMetrics
from services.rollout.openai_routes import add_openai_routes, attach_engine
from services.rollout.vllm_engine import VllmEngine
from services.rollout.weight_files import ModelShape
from services.rollout.weight_folder import WeightFolder
from services.rollout.weight_store import WeightStore
from services.rollout.worker import StreamWorker
from shared.outage import insist
from shared.queue_metrics import QueueMetrics
from shared.stream import Streams
from shared.workers import Heartbeat, worker_id

_GRACE_SECONDS = 1
_WATCH_SECONDS = 1.0
_TELL_SECONDS = 1.0
log = logging.getLogger("rollstream")


class _Server(uvicorn.Server):
    """Leaves signals to the service, which has more to stop than HTTP."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def start(
    settings: RolloutSettings, model: ModelShape, streams: Streams, url: str, token: str
) -> "RolloutService":
    """Start the engine, which takes seconds, and everything around it.

    Raises:
    ValueError: vLLM cannot serve this model with these settings, or there is no place for weights.
    """
    config = settings.rollout
    try:
        engine = VllmEngine(settings.model.path, config, settings.run.seed)
    except Exception as error:  # vLLM raises many kinds
        raise ValueError(f"the engine does not start with {settings.model.path}: {error}") from error
    try:
        folder = WeightFolder(config.weights_dir)
    except OSError as error:
        engine.close()
        raise ValueError(f"no place to receive weights ({error}); set [rollout] weights_dir") from error
    metrics = RolloutMetrics()
    weights = WeightStore(engine, model, folder, metrics)
    return RolloutService(engine, weights, streams, config.max_concurrent_groups, url, token, metrics)


class RolloutService:
    """Everything of the process. `run` lives in an event loop; the rest is made before there is one."""

    def __init__(
        self,
        engine: VllmEngine,
        weights: WeightStore,
        streams: Streams,
        max_groups: int,
        url: str,
        token: str,
        metrics: RolloutMetrics,
    ) -> None:
        self.id = worker_id("rollout")
        self.url = url
        self._leaving = False
        self._streams = streams
        self._engine = engine
        self._weights = weights
        self._heartbeat = Heartbeat(streams, "rollout", self.id, self.facts)
        self._worker = StreamWorker(
            streams, self.id, engine, weights, max_groups, metrics, lambda: self._heartbeat.is_steady
        )
        metrics.show(self._gauges)
        metrics.registry.register(QueueMetrics("rollout", streams, ("prompts", "rollouts", "dead")))
        self._app = make_app(token, weights, lambda: {"id": self.id, **self.facts()}, metrics)

    def facts(self) -> dict[str, Any]:
        """What the heartbeat and `/v1/status` tell."""
        status = self._weights.status
        state = "leaving" if self._leaving else status.state
        return {
            "url": self.url,
            "state": "dead" if self._engine.dead else state,
            "version": status.version,
            "digest": status.digest,
            "learner_epoch": status.learner_epoch,
            "groups_in_flight": self._worker.groups_in_flight,
            "groups_limit": self._worker.groups_limit,
            "groups_delivered": self._worker.outbox.groups_delivered,
            "tokens_generated": self._worker.outbox.tokens_generated,
            "groups_dead": self._worker.outbox.groups_dead,
            "dtype": self._engine.dtype,
            "max_model_len": self._engine.max_model_len,
        }

    def _gauges(self) -> dict[str, Any]:
        return {
            "policy_version": self._weights.version,
            "groups_in_flight": self._worker.groups_in_flight,
            "groups_limit": self._worker.groups_limit,
            "engine_running_requests": self._worker.load.running,
            "engine_waiting_requests": self._worker.load.waiting,
            "engine_kv_cache_use": self._worker.load.kv_cache_use,
        }

    async def run(self, listener: socket.socket) -> None:
        """Serve until SIGTERM or SIGINT; then stop reading, leave what is unfinished to others, and go.

        Raises:
        EngineDead, ModelBroken: nothing more can be generated.
        """
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        add_openai_routes(self._app)
        await attach_engine(self._app, self._engine)
        server = _Server(
            uvicorn.Config(
                self._app, log_level="warning", lifespan="off", timeout_graceful_shutdown=_GRACE_SECONDS
            )
        )
        http = asyncio.create_task(server.serve(sockets=[listener]))
        while not (server.started or http.done()):
            await asyncio.sleep(0.01)
        await asyncio.to_thread(insist, self._heartbeat.start, math.inf, lambda: None)
        log.info("serving at %s, waiting for weights", self.url)
        work = asyncio.create_task(self._worker.run())
        announce = asyncio.create_task(self._announce_versions())
        watch = asyncio.create_task(self._watch_engine())
        stopping = asyncio.create_task(stop.wait())
        running: list[asyncio.Task[Any]] = [work, announce, watch, stopping]
        try:
            ended, _ = await asyncio.wait([http, *running], return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()
        finally:
            log.info("stopping")
            self._leaving = True
            with contextlib.suppress(redis.RedisError, TimeoutError):  # before HTTP ends, or pushes fail
                await asyncio.wait_for(asyncio.to_thread(self._heartbeat.beat), _TELL_SECONDS)
            server.should_exit = True
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            with contextlib.suppress(redis.RedisError):  # the heartbeat's key expires by itself
                await asyncio.to_thread(self._heartbeat.stop)
            await asyncio.gather(http, return_exceptions=True)

    async def _announce_versions(self) -> None:
        """Tell the learner and people at once which version is served."""
        served = None
        while True:
            served = await self._weights.wait_for_update(served)
            version = served.version
            log.info("serving version %d", version)
            try:
                await asyncio.to_thread(self._heartbeat.beat)
                await asyncio.to_thread(
                    self._streams.event, "version", "rollout", f"{self.id} serves version {version}"
                )
            except redis.RedisError as error:
                log.warning("Redis was not told of version %d: %s", version, error)

    async def _watch_engine(self) -> None:
        """Raise when it is of no use any more, also while nothing is asked of it."""
        while not self._engine.dead:
            if self._weights.broken:  # what is in flight would wait for ever; others can answer it
                raise ModelBroken("a weight update stopped half way; the answer to its commit says why")
            await asyncio.sleep(_WATCH_SECONDS)
        raise EngineDead("the vLLM engine has died; its log says why")

    def close(self) -> None:
        """End the engine's process and free the shared memory."""
        self._engine.close()
        self._weights.close()
