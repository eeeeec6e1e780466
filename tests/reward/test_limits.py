"""Rates and tokens as pure functions, and the limits of a live service on how much it serves at a time."""

import asyncio
import base64
import threading
from typing import Any

import httpx
import pytest
from fastapi import HTTPException, Request

from services.reward.limits import CLIENTS_REMEMBERED, HeldBytes, RateLimit, is_allowed, read_body
from shared.stream import Streams, connect
from tests.conftest import RedisServer
from tests.reward.conftest import Launcher, wait_for

TOKEN = "sixteen-characters-or-more"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_bucket_holds_a_seconds_worth_and_refills() -> None:
    clock = Clock()
    limit = RateLimit(4, clock)
    assert [limit.seconds_to_wait("a") for _ in range(4)] == [0, 0, 0, 0]
    assert limit.seconds_to_wait("a") == pytest.approx(0.25)
    assert limit.seconds_to_wait("b") == 0, "another client has a bucket of its own"
    clock.now += 0.25
    assert limit.seconds_to_wait("a") == 0
    assert limit.seconds_to_wait("a") == pytest.approx(0.25)
    clock.now += 60
    assert [limit.seconds_to_wait("a") > 0 for _ in range(5)] == [False] * 4 + [True], "no more than full"


def test_less_than_one_request_a_second_is_possible() -> None:
    clock = Clock()
    limit = RateLimit(0.1, clock)
    assert limit.seconds_to_wait("a") == 0
    assert limit.seconds_to_wait("a") == pytest.approx(10)
    clock.now += 10
    assert limit.seconds_to_wait("a") == 0


def test_over_time_the_rate_is_kept() -> None:
    clock = Clock()
    limit = RateLimit(10, clock)
    served = 0
    for _ in range(10_000):
        clock.now += 0.01
        served += limit.seconds_to_wait("a") == 0
    assert 1000 <= served <= 1010


def test_many_clients_are_forgotten_but_not_the_one_that_is_over() -> None:
    clock = Clock()
    limit = RateLimit(2, clock)
    for _ in range(2):
        limit.seconds_to_wait("greedy")
    for number in range(3 * CLIENTS_REMEMBERED):
        limit.seconds_to_wait(f"client {number}")
    assert len(limit._full_at) <= CLIENTS_REMEMBERED
    assert limit.seconds_to_wait("greedy") > 0


@pytest.mark.parametrize("user", ["rollstream", ""])
def test_bearer_and_basic_carry_the_token(user: str) -> None:
    assert is_allowed(f"Bearer {TOKEN}", TOKEN)
    assert is_allowed("Basic " + base64.b64encode(f"{user}:{TOKEN}".encode()).decode(), TOKEN)
    assert is_allowed("basic " + base64.b64encode(f"{user}:{TOKEN}".encode()).decode(), TOKEN)


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        TOKEN,
        "Bearer ",
        f"Bearer {TOKEN}x",
        "Basic ",
        "Basic ====",
        "Basic \xff",
        "Basic " + base64.b64encode(TOKEN.encode()).decode(),
        "Basic " + base64.b64encode(f"{TOKEN}:".encode()).decode(),
        "Basic " + base64.b64encode(b"u:\xff\xff").decode(),
    ],
)
def test_nothing_else_does(header: str | None) -> None:
    assert not is_allowed(header, TOKEN)


def test_too_many_requests_are_told_when_to_come_back(launch: Launcher, redis_server: RedisServer) -> None:
    options = ("--reward.max_requests_per_second", "2")
    service = launch("rate", *options, environment={"ROLLSTREAM_REWARD_TOKEN": TOKEN})
    with connect(redis_server.url) as connection:
        url = str(service.facts(Streams(connection, "rate"))["url"])
    with httpx.Client(base_url=url, headers={"Authorization": "Bearer guess"}) as client:
        answers = [client.post("/v1/score", json={"items": []}) for _ in range(20)]
        assert {answer.status_code for answer in answers} == {401, 429}, "guesses count"
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert refused.headers["retry-after"] == "1"
        assert "max_requests_per_second = 2" in refused.json()["detail"][0]["message"]
        assert client.get("/health").status_code == 200, "watchers are never refused"
    assert service.stop() == 0


BLOCKING = """
import pathlib, sys, time
from services.reward.rules.table import RULES, Row
def blocked(item, config):
    while not pathlib.Path(item.prompt).exists():
        time.sleep(0.01)
    return 1.0
RULES["blocked"] = Row(blocked)
from services.reward.__main__ import main
main()
"""


def test_a_service_that_is_full_says_so_and_serves_on_when_it_is_not(
    launch: Launcher, redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    gate = tmp_path_factory.mktemp("gate") / "open"
    options = ("--reward.scorers", "{ blocked = 1.0 }", "--reward.max_waiting_requests", "2")
    service = launch("full", *options, "--reward.deadline_seconds", "60", code=BLOCKING)
    with connect(redis_server.url) as connection:
        url = str(service.facts(Streams(connection, "full"))["url"])
    # Long enough to be served in a thread: a short request would hold up the service itself.
    body = {"items": [{"prompt": str(gate), "response": "r", "metadata": {"padding": "x" * 200_000}}]}
    answers: list[httpx.Response] = []

    def ask() -> None:
        answers.append(httpx.post(f"{url}/v1/score", json=body, timeout=30))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        wait_for(lambda: "requests_waiting 2.0" in httpx.get(f"{url}/metrics").text, "both to be inside")
        refused = httpx.post(f"{url}/v1/score", json=body)
        assert (refused.status_code, "retry-after" in refused.headers) == (429, True)
        assert "max_waiting_requests = 2" in refused.json()["detail"][0]["message"]
    finally:
        gate.touch()
        for thread in threads:
            thread.join()
    assert [answer.json()["results"][0]["reward"] for answer in answers] == [1.0, 1.0]
    assert httpx.post(f"{url}/v1/score", json=body).status_code == 200
    assert service.stop() == 0


def request_of(*chunks: bytes, endless: bool = False) -> Request:
    """A request whose body comes in chunks; an endless one is never complete."""
    messages = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    if not endless:
        messages.append({"type": "http.request", "body": b"", "more_body": False})

    async def receive() -> dict[str, Any]:
        if not messages:
            await asyncio.Event().wait()
        return messages.pop(0)

    return Request({"type": "http", "method": "POST", "headers": []}, receive)


def test_the_bodies_of_all_requests_share_a_number_of_bytes() -> None:
    held = HeldBytes(10)
    with held.share() as first, held.share() as second:
        assert asyncio.run(read_body(request_of(b"1234", b"5678"), 100, 5, first)) == b"12345678"
        with pytest.raises(HTTPException) as refused:
            asyncio.run(read_body(request_of(b"123"), 100, 5, second))
        assert refused.value.status_code == 429
    with held.share() as third:
        assert asyncio.run(read_body(request_of(b"1234567890"), 100, 5, third)) == b"1234567890"


def test_a_body_that_is_not_sent_in_time_is_refused_with_408() -> None:
    with HeldBytes(10).share() as take, pytest.raises(HTTPException) as refused:
        asyncio.run(read_body(request_of(b"12", endless=True), 100, 0.05, take))
    assert refused.value.status_code == 408


def test_a_client_that_leaves_while_it_sends_its_body_is_no_fault_of_ours() -> None:
    messages: list[dict[str, Any]] = [{"type": "http.request", "body": b"12", "more_body": True}]
    messages.append({"type": "http.disconnect"})

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    held = HeldBytes(10)
    request = Request({"type": "http", "method": "POST", "headers": []}, receive)
    with held.share() as take, pytest.raises(HTTPException) as refused:
        asyncio.run(read_body(request, 100, 5, take))
    assert refused.value.status_code == 499
    with held.share() as take:
        take(10)  # what it had sent is held no more
