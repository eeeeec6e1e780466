"""One rollout process: engine, weights, HTTP and stream worker, started and stopped together."""

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Iterator
from typing import Any

import uvicorn

from services.rollout.app import make_app
from services.rollout.config import RolloutSettings
from services.rollout.openai_routes import add_openai_routes
from services.rollout.vllm_engine import VllmEngine
from services.rollout.weight_files import ModelShape
from services.rollout.weight_folder import WeightFolder
from services.rollout.weight_store import WeightStore
from services.rollout.worker import StreamWorker
from shared.stream import Streams
from shared.workers import Heartbeat, worker_id

_GRACE_SECONDS = 2
log = logging.getLogger("rollstream")


class _Server(uvicorn.Server):
    """Leaves signals to the service, which has more to stop than HTTP."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    settings: RolloutSettings, model: ModelShape, listener: socket.socket, url: str, streams: Streams, token: str
) -> None:
    """Run until SIGTERM or SIGINT.

    Raises:
    EngineDead: the engine stopped for good.
    """
    config, started = settings.rollout, time.monotonic()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    folder = WeightFolder(config.weights_dir)
    log.info("loading %s", settings.model.path)
    engine = VllmEngine(settings.model.path, config, settings.run.seed)
    weights = WeightStore(engine, model, folder)
    worker = StreamWorker(streams, worker_id("rollout"), engine, weights, config.max_concurrent_groups)

    def facts() -> dict[str, Any]:
        """What the heartbeat and `/v1/status` tell."""
        status = weights.status
        return {
            "url": url,
            "version": status.version,
            "digest": status.digest,
            "state": "dead" if engine.dead else status.state,
            "learner_epoch": status.learner_epoch,
            "groups_in_flight": worker.groups_in_flight,
            "groups_done": worker.groups_done,
            "tokens_generated": worker.tokens_generated,
            "dead_lettered": worker.dead_lettered,
            "dtype": engine.dtype,
            "max_model_len": engine.max_model_len,
        }

    app = make_app(token, weights, lambda: {"id": worker.id, "service": "rollout", **facts()})
    await add_openai_routes(app, engine)
    server = _Server(
        uvicorn.Config(app, log_level="warning", lifespan="off", timeout_graceful_shutdown=_GRACE_SECONDS)
    )
    heartbeat = Heartbeat(streams, "rollout", worker.id, facts)
    http = asyncio.create_task(server.serve(sockets=[listener]))
    while not (server.started or http.done()):
        await asyncio.sleep(0.01)
    heartbeat.start()
    log.info("serving at %s after %.1f s, waiting for weights", url, time.monotonic() - started)
    work = asyncio.create_task(worker.run())
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({http, work, stopping}, return_when=asyncio.FIRST_COMPLETED)
        for task in (http, work):
            if task.done():
                task.result()
    finally:
        log.info("stopping")
        server.should_exit = True
        work.cancel()
        await asyncio.gather(work, http, return_exceptions=True)
        heartbeat.stop()
        engine.close()
        folder.close()
