"""Every route but two is closed to those without the token."""

import json
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest

from tests.rollout.server import TOKEN, RolloutServer

OPEN = {"/health", "/ready"}

LIST_ROUTES = """
import json
from services.rollout.app import make_app
from services.rollout.metrics import RolloutMetrics
from services.rollout.openai_routes import add_openai_routes
app = make_app("token", None, dict, RolloutMetrics())
add_openai_routes(app)
routes = [(sorted(route.methods), route.path) for route in app.routes]
print("ROUTES " + json.dumps(routes))
"""


@pytest.fixture
def listing() -> Iterator["subprocess.Popen[str]"]:
    """Lists the routes in a process of its own, while the server starts: vLLM takes seconds to import."""
    with subprocess.Popen([sys.executable, "-c", LIST_ROUTES], stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_every_route_but_health_and_ready_wants_the_token(
    listing: "subprocess.Popen[str]", server: RolloutServer
) -> None:
    output, _ = listing.communicate(timeout=120)
    (line,) = [line for line in output.splitlines() if line.startswith("ROUTES ")]
    routes = json.loads(line.removeprefix("ROUTES "))
    paths = {path for _, path in routes}
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/status"} <= paths
    with httpx.Client(base_url=server.url, timeout=30) as client:
        for methods, path in routes:
            url = path.replace("{version}", "1").replace("{part}", "0")
            for method in methods:
                for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}):
                    code = client.request(method, url, headers=headers).status_code
                    assert (code == 401) == (path not in OPEN), f"{method} {path} answered {code}"
        assert client.get("/openapi.json").status_code == 404
        assert client.post("/pause").status_code == 404


def test_the_openai_routes_answer_from_the_same_engine(server: RolloutServer) -> None:
    (model,) = server.client.get("/v1/models").json()["data"]
    answer = server.client.post(
        "/v1/completions", json={"model": model["id"], "prompt": "12+7=", "max_tokens": 3, "temperature": 0}
    )
    assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] <= 3
    messages = [{"role": "user", "content": "12+7="}]
    chat = server.client.post(
        "/v1/chat/completions", json={"model": model["id"], "messages": messages, "max_tokens": 3}
    )
    assert chat.status_code == 200, chat.text
