"""Ten thousand malformed bodies, and whatever the OpenAPI schema allows: never 5xx, always a reason."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from services.reward.problems import PROBLEMS_SHOWN, Problems
from shared.stream import Streams, connect
from tests.conftest import RedisServer
from tests.reward.inside import Answer, application, ask

BODIES = 10_000
RUNS_PROGRAMS = ("/test_program", "/test_program_stdio")
SCORE_KEYS = {"rewards", "scores", "reward", "results", "answer_status", "data", "score"}
ODD: list[Any] = [
    None,
    True,
    0,
    -1,
    10**400,
    1e308,
    -0.0,
    "",
    "\x00",
    "\u202e\u2028🙂",
    "\ud800",
    "x" * 3000,
    "\\boxed{" * 50,
    "18" + "</s>" * 1500,
    [],
    {},
    [[]],
    [None],
    {"": None},
    {"items": []},
    "NaN",
    float("nan"),
    float("inf"),
]
PIECES = [
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\x00",
    b"\xff",
    b"\\u",
    b"\\ud800",
    b"1e999",
    b"\xef\xbb\xbf",
]


@pytest.fixture(scope="module")
def app(redis_server: RedisServer) -> Iterator[FastAPI]:
    with connect(redis_server.url) as client:
        streams = Streams(client, "fuzz")
        streams.ensure_groups()
        scorers = {"format_reward_fn": 1.0}
        limits = {"max_body_bytes": 20_000, "max_items": 20, "max_text_characters": 2000}
        with application(streams, scorers=scorers, deadline_seconds=2, **limits) as app:
            yield app


def examples(app: FastAPI) -> dict[str, Any]:
    """A good body for every route that takes one."""
    found = {}
    for path, methods in app.openapi()["paths"].items():
        if "post" in methods:
            found[path] = methods["post"]["requestBody"]["content"]["application/json"]["example"]
    return found


def malformed(random: random.Random, example: Any) -> bytes:
    """A body that is wrong in one to three places, in its values or its bytes."""
    value = json.loads(json.dumps(example))
    for _ in range(random.randint(1, 3)):
        value = change(random, value)
    body = bytearray(json.dumps(value).encode())
    if random.random() < 0.4:
        for _ in range(random.randint(1, 3)):
            where = random.randrange(len(body) + 1)
            action = random.randrange(4)
            if action == 0:
                body[where:where] = random.choice(PIECES)
            elif action == 1:
                del body[where : where + random.randint(1, 20)]
            elif action == 2 and where < len(body):
                body[where] = random.randrange(256)
            else:
                body = body[:where]
    return bytes(body)


def change(random: random.Random, value: Any) -> Any:
    """`value` with one of its nodes replaced, removed, repeated, renamed or wrapped."""
    if not isinstance(value, (dict, list)) or not value or random.random() < 0.15:
        odd = random.choice([*ODD, [value], {"value": value}, [value] * 30])
        return odd
    if isinstance(value, list):
        where = random.randrange(len(value))
        if random.random() < 0.2:
            return value[:where] + value[where + 1 :]
        return [*value[:where], change(random, value[where]), *value[where + 1 :]]
    key = random.choice(list(value))
    rest = {name: inner for name, inner in value.items() if name != key}
    action = random.random()
    if action < 0.2:
        return rest
    if action < 0.3:
        return {**rest, key + "s": value[key]}
    return {**value, key: change(random, value[key])}


def check(path: str, body: bytes, answer: Answer) -> None:
    told = f"{path} {body[:300]!r} -> {answer.status} {answer.body[:300]!r}"
    assert answer.status in (200, 400, 413, 422, 501, 504), told
    if answer.status == 200:
        json.loads(answer.body, parse_constant=lambda constant: pytest.fail(f"{constant}: {told}"))
    else:
        reply = answer.json()
        assert reply.keys() == {"detail"} and not SCORE_KEYS & reply.keys(), told
        problems = Problems.model_validate(reply).detail
        assert 0 < len(problems) <= PROBLEMS_SHOWN and all(problem.message for problem in problems), told


def test_ten_thousand_malformed_bodies_are_refused_or_scored_and_break_nothing(app: FastAPI) -> None:
    dice = random.Random(20261121)
    good = examples(app)
    assert len(good) >= 9

    async def run() -> Counter[int]:
        statuses: Counter[int] = Counter()
        for start in range(0, BODIES, 32):
            batch = []
            for _ in range(start, min(start + 32, BODIES)):
                path = dice.choice(list(good))
                batch.append((path, malformed(dice, good[path])))
            answers = await asyncio.gather(*(ask(app, path, body) for path, body in batch))
            for (path, body), answer in zip(batch, answers, strict=True):
                check(path, body, answer)
                statuses[answer.status] += 1
        return statuses

    statuses = asyncio.run(run())
    assert sum(statuses.values()) == BODIES
    assert statuses[422] > BODIES / 3 and statuses[200] > 100 and statuses[413] > 0, statuses


def test_whatever_the_schema_allows_is_answered_as_the_schema_says(app: FastAPI) -> None:
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    checks = [not_a_server_error, status_code_conformance, response_schema_conformance]
    operations = [found.ok() for found in schema.get_all_operations()]  # type: ignore[union-attr]
    assert len(operations) > 12
    for operation in operations:
        if operation.path in ("/ready", *RUNS_PROGRAMS):
            continue  # no worker runs here; and 501, which is a 5xx, where no programs are run

        @given(case=operation.as_strategy())
        @settings(max_examples=20, deadline=None, derandomize=True, database=None)
        def answers(case: Any) -> None:
            case.call_and_validate(checks=checks)

        answers()
