"""The REST door, over a real socket to a real process."""

import base64
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from shared.stream import Streams, connect
from tests.conftest import RedisServer
from tests.reward.conftest import Launcher
from tests.reward.groups import RIGHT, UNFINISHED, WRONG

TOKEN = "a-token-for-this-test-only"
LIMITS = (
    "--reward.max_items",
    "50",
    "--reward.max_response_characters",
    "1000",
    "--reward.max_body_bytes",
    "20000",
    "--reward.max_text_characters",
    "5000",
)


@pytest.fixture(scope="module")
def client(launch: Launcher, redis_server: RedisServer) -> Iterator[httpx.Client]:
    service = launch("rest", *LIMITS, environment={"ROLLSTREAM_REWARD_TOKEN": TOKEN})
    with connect(redis_server.url) as connection:
        url = str(service.facts(Streams(connection, "rest"))["url"])
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=10) as client:
        yield client
    assert service.stop() == 0
    assert "Traceback" not in service.stderr()


def score(client: httpx.Client, items: list[dict[str, Any]], **more: Any) -> httpx.Response:
    return client.post("/v1/score", json={"items": items, **more})


def test_items_are_scored_in_order_and_one_bad_item_spoils_no_other(client: httpx.Client) -> None:
    answer = score(
        client,
        [
            {"id": "a", "prompt": "?", "response": RIGHT, "ground_truth": "18", "metadata": {"x": [1]}},
            {"response": RIGHT},
            {"id": "c", "response": "x" * 1001, "ground_truth": "18"},
            {"id": "a", "response": WRONG, "ground_truth": "#### 18"},
            {"response": UNFINISHED, "ground_truth": "18"},
        ],
    )
    assert answer.status_code == 200
    results = answer.json()["results"]
    assert [(r["id"], r["reward"], r["status"]) for r in results] == [
        ("a", 10.0, "ok"),
        ("1", None, "invalid"),
        ("c", None, "invalid"),
        ("a", 1.0, "ok"),
        ("4", 0.0, "ok"),
    ]
    assert results[0]["components"] == {"gsm8k_reward_fn": 10.0}
    assert results[0]["error"] is None
    assert "ground_truth" in results[1]["error"]


def test_no_items_give_no_results(client: httpx.Client) -> None:
    assert score(client, []).json() == {"results": []}


def test_a_request_may_choose_its_scorers(client: httpx.Client) -> None:
    items = [{"response": "#### 1,000", "ground_truth": "1000"}]
    answer = score(client, items, scorers=["gsm8k_strict_reward_fn", "gsm8k_reward_fn"])
    (result,) = answer.json()["results"]
    assert result["reward"] == 1.0
    assert result["components"] == {"gsm8k_strict_reward_fn": 1.0, "gsm8k_reward_fn": 0.0}


def test_an_unknown_scorer_is_refused_with_a_suggestion(client: httpx.Client) -> None:
    answer = score(client, [], scorers=["gsm8k_reward"])
    assert answer.status_code == 422
    (problem,) = answer.json()["detail"]
    assert problem["field"] == "scorers"
    assert "Did you mean 'gsm8k_reward_fn'" in problem["message"]


@pytest.mark.parametrize(
    ("bad", "field", "message"),
    [
        ({}, "response", "missing required field"),
        ({"response": 5}, "response", "Expected `str`, got `int`"),
        ({"response": None}, "response", "Expected `str`, got `null`"),
        ({"response": "r", "ground_truth": 18}, "ground_truth", "Expected `str | null`, got `int`"),
        ({"response": "r", "metadata": []}, "metadata", "Expected `object`, got `array`"),
        ({"response": "r", "answer": "18"}, "answer", "unknown field"),
    ],
)
def test_a_malformed_item_is_named_with_its_field(
    client: httpx.Client, bad: dict[str, Any], field: str, message: str
) -> None:
    answer = score(client, [{"response": RIGHT}, bad])
    assert answer.status_code == 422
    (problem,) = answer.json()["detail"]
    assert (problem["item"], problem["field"]) == (1, field)
    assert message in problem["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"items": 3}',
        b'{"items": [], "more": 1}',
        b'{"items": [{"response": "\\ud800"}]}',
        b'{"items": [{"response": "\xff"}]}',
        b'{"items": ' + b"[" * 5000,
        b'{"items": [{"response": "r", "metadata": {"deep": ' + b"[" * 5000,
    ],
)
def test_a_body_that_is_no_request_is_refused(client: httpx.Client, body: bytes) -> None:
    answer = client.post("/v1/score", content=body)
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["message"]


def test_many_problems_are_not_all_listed(client: httpx.Client) -> None:
    long = score(client, [{"response": "r", "prompt": "x" * 5001}] * 3)
    assert [problem["item"] for problem in long.json()["detail"]] == [0, 1, 2]
    many = client.post("/get_reward", json={"query": [1] * 50, "prompts": [], "labels": []})
    assert (many.status_code, len(many.json()["detail"])) == (422, 20)


def test_unicode_comes_through(client: httpx.Client) -> None:
    items = [
        {"id": "é\u2028🙂", "response": "<think>思考 🙂</think><answer>18</answer>", "ground_truth": "18"}
    ]
    (result,) = score(client, items).json()["results"]
    assert (result["id"], result["reward"]) == ("é\u2028🙂", 10.0)


def test_too_much_at_once_is_refused_with_413(client: httpx.Client) -> None:
    many = score(client, [{"response": "r"}] * 51)
    assert (many.status_code, message(many)) == (413, "51 items; at most max_items = 50 at a time")
    long = score(client, [{"response": "r" * 20000}])
    assert long.status_code == 413
    assert "max_body_bytes" in message(long)
    streamed = client.post("/v1/score", content=iter([b" " * 15000] * 2))
    assert streamed.status_code == 413, "without a Content-Length too"


@pytest.mark.parametrize("field", ["prompt", "ground_truth"])
def test_a_text_that_is_too_long_is_named(client: httpx.Client, field: str) -> None:
    answer = score(client, [{"response": RIGHT, "ground_truth": "18"}, {"response": "r", field: "x" * 5001}])
    (problem,) = answer.json()["detail"]
    assert (answer.status_code, problem["item"], problem["field"]) == (422, 1, field)
    assert "max_text_characters = 5000" in problem["message"]


def message(answer: httpx.Response) -> str:
    (problem,) = answer.json()["detail"]
    return str(problem["message"])


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"rollstream:{password}".encode()).decode()


WRONG_HEADERS = (
    "",
    "Bearer wrong",
    TOKEN,
    f"Basic {TOKEN}",
    basic("wrong"),
    basic(""),
    "Basic \xff",
    "Basic é",
)


def scoring_routes(client: httpx.Client) -> list[tuple[str, str]]:
    paths = client.get("/openapi.json").json()["paths"]
    return [(method, path) for path, methods in paths.items() for method in methods]


def test_the_token_is_asked_for_on_every_route_but_health_and_readiness(client: httpx.Client) -> None:
    routes = scoring_routes(client)
    assert len(routes) > 8
    for method, path in routes:
        for header in WRONG_HEADERS:
            answer = client.request(method, path, headers={b"Authorization": header.encode()})  # type: ignore[dict-item]
            if path in ("/health", "/ready"):
                assert answer.status_code == 200
            else:
                assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), path
                assert answer.json().keys() == {"detail"}


def test_a_forged_host_or_path_does_not_open_a_route(client: httpx.Client) -> None:
    for path, host in (("/v1/scorers", "x/health?"), ("/health/../v1/scorers", "x"), ("//v1/scorers", "x")):
        answer = client.get(path, headers={"Authorization": "", "Host": host})
        assert answer.status_code in (400, 401, 404)


def test_the_token_may_be_the_password_of_a_url(client: httpx.Client) -> None:
    answer = client.get("/v1/scorers", headers={"Authorization": basic(TOKEN)})
    assert answer.status_code == 200


def test_paths_and_methods_that_are_none_have_the_same_kind_of_body(client: httpx.Client) -> None:
    assert [client.get("/v1/nope").json(), client.get("/v1/score").json()] == [
        {"detail": [{"item": None, "field": None, "message": text}]}
        for text in ("Not Found", "Method Not Allowed")
    ]


def test_scorers_are_listed_with_weight_kind_parameters_and_meaning(client: httpx.Client) -> None:
    answer = client.get("/v1/scorers").json()
    assert answer["configured"].keys() == {"gsm8k_reward_fn"}
    scorer = answer["configured"]["gsm8k_reward_fn"]
    assert (scorer["weight"], scorer["kind"]) == (1.0, "rule")
    assert scorer["parameters"]["tags"]["answer_start"]["text"] == "<answer>"
    assert answer["available"]["gsm8k_strict_reward_fn"].startswith("1 if the number after")


def test_a_thousand_small_requests_take_seconds(client: httpx.Client) -> None:
    items = [{"response": RIGHT, "ground_truth": "18"}] * 8
    start = time.monotonic()
    for _ in range(1000):
        assert score(client, items).status_code == 200
    assert time.monotonic() - start < 20
