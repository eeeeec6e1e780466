"""The application: both doors of the service in one process, REST here and the stream worker in a thread."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Depends, FastAPI, Response

from services.reward.compat import llamafactory, nemo_gym, openinstruct, openrlhf, pipelinerl, slime, vllm
from services.reward.config import RewardConfig
from services.reward.core import ScoringCore
from services.reward.door import Door
from services.reward.metrics import Measured, Metrics
from services.reward.problems import ANSWERS, Problems, refusal, speak_in_problems
from services.reward.routes import Routes, add_native_routes
from services.reward.shortcut import Shortcut
from services.reward.worker import Worker
from shared.queue_metrics import QueueMetrics
from shared.stream import Streams

log = logging.getLogger("rollstream")

CONTRACTS = (openrlhf, llamafactory, slime, openinstruct, pipelinerl, nemo_gym, vllm)
"""What other trainers speak, each at its own path."""


def create_app(
    config: RewardConfig,
    core: ScoringCore,
    worker: Worker,
    streams: Streams,
    token: str | None,
    metrics: Metrics,
    watch_token: str | None = None,
) -> FastAPI:
    """The application. While it runs, `worker` runs in a thread; if that fails, the server stops.

    Args:
        token, watch_token: see `Door`.
    """
    metrics.registry.register(QueueMetrics("reward", streams, ("rollouts", "experiences", "dead")))
    core.observe = metrics.time_scorer
    door = Door(config, core, token, metrics, watch_token)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        running = asyncio.create_task(asyncio.to_thread(worker.run))
        running.add_done_callback(_stop_server_on_failure)
        yield
        worker.stop()
        await asyncio.wait([running])
        door.close()

    # FastAPI's own schema route would ask for no token, and its pages load scripts from elsewhere.
    app = FastAPI(
        title="Rollstream reward service", lifespan=lifespan, openapi_url=None, docs_url=None, redoc_url=None
    )
    routes = Routes(door)
    app.add_middleware(Shortcut, routes=routes.straight)
    app.add_middleware(Measured, metrics=metrics)  # around the other
    speak_in_problems(app)
    _add_open_routes(app, worker)

    @app.get(
        "/metrics",
        dependencies=[Depends(door.admit_watcher)],
        responses={401: ANSWERS[401], 429: ANSWERS[429]},
    )
    def show_metrics() -> Response:
        """Prometheus' text format: requests, items by status, seconds, queues. Asks for the token."""
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/openapi.json", dependencies=[Depends(door.admit_watcher)], include_in_schema=False)
    def show_schema() -> dict[str, Any]:
        return app.openapi()

    add_native_routes(routes)
    for contract in CONTRACTS:
        contract.add(routes)
    app.include_router(routes.router)
    routes.put_examples(app.openapi())
    return app


def _add_open_routes(app: FastAPI, worker: Worker) -> None:
    """Those that never ask for the token: what starts and watches containers has none."""

    @app.get("/health")
    async def health() -> dict[str, str]:
        """The process answers."""
        return {"status": "ok"}

    @app.get("/ready", responses={503: {"model": Problems, "description": "Redis does not answer."}})
    async def ready() -> dict[str, str]:
        """The worker reads its stream; 503 with the reason if it cannot."""
        if worker.outage:
            raise refusal(503, worker.outage)
        return {"status": "ready", "worker": worker.id}


def _stop_server_on_failure(running: "asyncio.Task[None]") -> None:
    if error := running.exception():
        log.error("the stream worker failed, stopping", exc_info=error)
        signal.raise_signal(signal.SIGTERM)
