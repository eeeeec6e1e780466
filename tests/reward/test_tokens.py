"""Which token opens which route: every one that the application has, in its schema or not."""

import asyncio

import httpx
import pytest
from fastapi import FastAPI

from shared.stream import Streams
from tests.reward.inside import application

TOKEN, WATCH_TOKEN = "a-token-for-this-test-only", "another-token-to-look-only"
OPEN = {("GET", "/health"), ("GET", "/ready")}
SHOWING = {("GET", "/metrics"), ("GET", "/v1/scorers"), ("GET", "/openapi.json"), ("GET", "/v1/models")}


def routes(app: FastAPI) -> set[tuple[str, str]]:
    """Of the whole application, those that its schema does not tell of too."""
    told = {(method.upper(), path) for path, methods in app.openapi()["paths"].items() for method in methods}
    walked = {
        (method, getattr(route, "path", ""))
        for route in app.routes
        for method in getattr(route, "methods", None) or ()
    }
    return {(method, path) for method, path in told | walked if method != "HEAD"}


def statuses(app: FastAPI, token: str) -> dict[tuple[str, str], int]:
    async def ask() -> dict[tuple[str, str], int]:
        transport = httpx.ASGITransport(app)
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
            return {route: (await client.request(*route)).status_code for route in sorted(routes(app))}

    return asyncio.run(ask())


@pytest.mark.parametrize("token", ["", "wrong", TOKEN, WATCH_TOKEN])
def test_each_route_opens_to_its_tokens_and_no_other(streams: Streams, token: str) -> None:
    with application(streams, TOKEN, WATCH_TOKEN) as app:
        found = statuses(app, token)
    opened = {route for route, status in found.items() if status != 401}
    assert len(found) > 15
    if token == TOKEN:
        assert opened == found.keys()
    else:
        assert opened == (OPEN | SHOWING if token == WATCH_TOKEN else OPEN)
    if token in (TOKEN, WATCH_TOKEN):
        assert {found[route] for route in SHOWING} == {200}


def test_nothing_asks_for_a_token_where_none_is_set(streams: Streams) -> None:
    with application(streams) as app:
        assert 401 not in statuses(app, "").values()


def test_no_page_is_shown_that_loads_scripts_from_elsewhere(streams: Streams) -> None:
    with application(streams) as app:
        assert not {path for _, path in routes(app)} & {"/docs", "/redoc", "/docs/oauth2-redirect"}
