"""The scoring routes without the framework's routing, which takes longer than a short request's score."""

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from fastapi import HTTPException, Request, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from services.reward.problems import answer_of


class Straight(NamedTuple):
    """A route that takes nothing but a body."""

    path: str
    handle: Callable[[Request], Awaitable[Response]]


class Shortcut:
    """ASGI middleware: a `POST` to one of `routes` is handled here, everything else by the application.

    The application has the same routes, for its schema and for every way of writing their paths.
    """

    def __init__(self, app: ASGIApp, routes: Mapping[str, Straight]) -> None:
        self._app = app
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asks = scope["type"] == "http" and scope["method"] == "POST"
        route = self._routes.get(scope["path"]) if asks else None
        if route is None:
            return await self._app(scope, receive, send)
        scope["route"] = route
        try:
            response = await route.handle(Request(scope, receive))
        except HTTPException as error:
            response = answer_of(error)
        await response(scope, receive, send)
