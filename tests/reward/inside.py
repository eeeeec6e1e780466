"""The application in the test's own process, asked without sockets: for tests of many thousand requests."""

import asyncio
import contextlib
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from fastapi import FastAPI

from services.reward.app import create_app
from services.reward.config import RewardConfig
from services.reward.core import ScoringCore
from services.reward.metrics import Metrics
from services.reward.worker import Worker
from shared.stream import Streams


@contextlib.contextmanager
def application(
    streams: Streams, token: str | None = None, watch_token: str | None = None, /, **reward: Any
) -> Iterator[FastAPI]:
    """An application whose stream worker does not run unless its lifespan does."""
    config = RewardConfig.model_validate(reward)
    core, metrics = ScoringCore(config), Metrics()
    try:
        worker = Worker(streams, core, config, metrics, dict)
        yield create_app(config, core, worker, streams, token, metrics, watch_token)
    finally:
        core.close()


class Answer(NamedTuple):
    status: int
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


async def ask(app: FastAPI, path: str, body: bytes, *headers: tuple[bytes, bytes]) -> Answer:
    """`POST path` by ASGI's three calls."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "scheme": "http",
        "query_string": b"",
        "headers": [(b"host", b"test"), *headers],
        "client": ("127.0.0.1", 1),
        "server": ("test", 80),
    }
    told: list[dict[str, Any]] = []
    unread = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if unread:
            return unread.pop()
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None:
        told.append(message)

    await app(scope, receive, send)
    return Answer(told[0]["status"], b"".join(message.get("body", b"") for message in told[1:]))
