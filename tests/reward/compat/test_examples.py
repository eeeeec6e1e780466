"""The examples in the OpenAPI schema are what the service answers."""

from typing import Any

import httpx
import pytest


def posts(url: str) -> dict[str, Any]:
    paths = httpx.get(f"{url}/openapi.json").json()["paths"]
    return {path: methods["post"] for path, methods in paths.items() if "post" in methods}


@pytest.mark.parametrize(
    "path", ["/v1/score", "/get_reward", "/rm", "/rm/object", "/verify_answer", "/verify", "/seed_session"]
)
def test_the_example_request_gets_the_example_answer(gsm8k: str, path: str) -> None:
    route = posts(gsm8k)[path]
    request = route["requestBody"]["content"]["application/json"]["example"]
    expected = route["responses"]["200"]["content"]["application/json"]["example"]
    answer = httpx.post(f"{gsm8k}{path}", json=request, timeout=30)
    assert answer.status_code == 200, answer.text
    assert answer.json() == expected


@pytest.mark.parametrize("path", ["/v1/score/evaluation", "/classify"])
def test_an_example_for_a_reward_model_has_the_shape_of_the_answer(textual: str, path: str) -> None:
    route = posts(textual)[path]
    request = route["requestBody"]["content"]["application/json"]["example"]
    expected = route["responses"]["200"]["content"]["application/json"]["example"]
    answer = httpx.post(f"{textual}{path}", json=request).json()
    assert shape(answer) == shape(expected)


def shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    return [shape(inner) for inner in value] if isinstance(value, list) else type(value)


def test_every_route_tells_what_else_it_may_answer(gsm8k: str) -> None:
    for path, route in posts(gsm8k).items():
        assert {"401", "413", "422", "429", "503", "504"} <= route["responses"].keys(), path
        assert route["description"] and route["tags"], path
