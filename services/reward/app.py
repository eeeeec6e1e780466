"""The REST door: `POST /v1/score`, `GET /v1/scorers`, `/health`, `/ready`; it also runs the stream worker."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from pydantic import ValidationError

from services.reward.config import RewardConfig
from services.reward.core import ScoringCore
from services.reward.worker import Worker
from shared.auth import is_authorised
from shared.scoring import ScoreRequest, ScoreResponse

log = logging.getLogger("rollstream")

PROBLEMS_SHOWN = 20


def create_app(config: RewardConfig, core: ScoringCore, worker: Worker, token: str | None) -> FastAPI:
    """The application. While it runs, `worker` runs in a thread; if that fails, the server stops."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        running = asyncio.create_task(asyncio.to_thread(worker.run))
        running.add_done_callback(_stop_server_on_failure)
        yield
        worker.stop()
        await asyncio.wait([running])

    app = FastAPI(title="Rollstream reward service", lifespan=lifespan)

    @app.get("/health")
    async def health() -> dict[str, str]:
        """The process answers."""
        return {"status": "ok"}

    @app.get("/ready")
    async def ready() -> dict[str, str]:
        """The worker reads its stream; 503 with the reason if it cannot."""
        if worker.outage:
            raise HTTPException(503, detail=worker.outage)
        return {"status": "ready", "worker": worker.id}

    app.include_router(_scoring_routes(config, core, token))
    return app


def _stop_server_on_failure(running: "asyncio.Task[None]") -> None:
    if error := running.exception():
        log.error("the stream worker failed, stopping", exc_info=error)
        signal.raise_signal(signal.SIGTERM)


def _scoring_routes(config: RewardConfig, core: ScoringCore, token: str | None) -> APIRouter:
    async def authorised(request: Request) -> None:
        if token and not is_authorised(request.headers.get("authorization"), token):
            raise HTTPException(401, "bearer token missing or wrong", {"WWW-Authenticate": "Bearer"})

    router = APIRouter(prefix="/v1", dependencies=[Depends(authorised)])

    @router.get("/scorers")
    async def scorers() -> dict[str, Any]:
        """The configured scorers with kind, weight and parameters, and the rules that a request may name."""
        return core.describe()

    @router.post("/score", response_model=ScoreResponse, openapi_extra=_BODY_SCHEMA)
    async def score(request: Request) -> Response:
        """One result per item, in order. An item that cannot be scored has its own status."""
        body = await _read_body(request, config.max_body_bytes)
        return await asyncio.to_thread(_score, body, config.max_items, core)

    return router


_BODY_SCHEMA = {
    "requestBody": {"content": {"application/json": {"schema": ScoreRequest.model_json_schema()}}}
}


async def _read_body(request: Request, limit: int) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise HTTPException(413, f"the body is longer than max_body_bytes = {limit}; send fewer items")
    return bytes(body)


def _score(body: bytes, max_items: int, core: ScoringCore) -> Response:
    try:
        wanted = ScoreRequest.model_validate_json(body)
    except ValidationError as error:
        raise HTTPException(422, [_problem(item) for item in error.errors()[:PROBLEMS_SHOWN]]) from error
    if len(wanted.items) > max_items:
        raise HTTPException(413, f"{len(wanted.items)} items; at most max_items = {max_items} at a time")
    try:
        results = core.score(wanted.items, wanted.scorers)
    except ValueError as error:
        raise HTTPException(422, [{"item": None, "field": "scorers", "message": str(error)}]) from error
    content = ScoreResponse(results=results).model_dump_json()
    return Response(content, media_type="application/json")


def _problem(error: Any) -> dict[str, Any]:
    """Which item and field of a request is wrong, and why; without the value, which may be long or secret."""
    location = list(error["loc"])
    item = None
    if location[:1] == ["items"] and len(location) > 1:
        item, location = location[1], location[2:]
    return {"item": item, "field": ".".join(map(str, location)) or None, "message": error["msg"]}
