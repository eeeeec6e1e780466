"""The HTTP side of the rollout service. Only `/health` and `/ready` are open to anyone."""

from collections.abc import Callable
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response

from services.rollout import weight_routes
from services.rollout.access import require_token
from services.rollout.metrics import RolloutMetrics
from services.rollout.weight_store import WeightStore


def make_app(
    token: str, weights: WeightStore, facts: Callable[[], dict[str, Any]], metrics: RolloutMetrics
) -> FastAPI:
    """Health, readiness, status, metrics and weight routes. `facts` is what `/v1/status` tells."""
    app = FastAPI(title="Rollstream rollout", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.token = token
    app.state.weights = weights
    app.include_router(weight_routes.router)

    @app.get("/health")
    async def health() -> JSONResponse:
        """200 while the process and its engine live."""
        dead = facts()["state"] == "dead"
        return JSONResponse({"status": "dead" if dead else "ok"}, 503 if dead else 200)

    @app.get("/ready")
    async def ready() -> JSONResponse:
        """200 once the learner has confirmed a version, so that prompts are answered."""
        status = weights.status
        code = 503 if status.version is None else 200
        return JSONResponse({"version": status.version, "state": status.state}, code)

    @app.get("/v1/status", dependencies=[Depends(require_token)])
    async def status(_: Request) -> dict[str, Any]:
        return facts()

    @app.get("/metrics", dependencies=[Depends(require_token)])
    def show_metrics() -> Response:
        """Prometheus' text format. In a thread, because it asks Redis."""
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return app
