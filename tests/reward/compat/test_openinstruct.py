"""open-instruct's code tests, asked and read as its `CodeVerifier` does it."""

import base64
import json
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import RedisServer
from tests.reward.compat.conftest import url_of
from tests.reward.compat.wire import REQUESTS, Answer, post
from tests.reward.conftest import Launcher

SECONDS = 2.0


@pytest.fixture(scope="module")
def url(launch: Launcher, redis_server: RedisServer) -> Iterator[str]:
    """A service that runs programs in its sandbox."""
    code = '{ rule = "code_tests", weight = 0.0, test_seconds = 2.0, max_tests = 10 }'
    scorers = f"{{ code = {code}, gsm8k_reward_fn = 1.0 }}"
    service = launch("compat-code", "--reward.scorers", scorers)
    yield url_of(service, "compat-code", redis_server)
    assert service.stop() == 0


def ask(url: str, route: str, program: Any, tests: Any) -> Answer:
    payload = {"program": program, "tests": tests, "max_execution_time": SECONDS}
    return post(REQUESTS, f"{url}/{route}", payload)


def verdict(url: str, route: str, program: str, tests: Any, penalty: bool = False) -> float:
    """`CodeVerifier.async_call` without its `except`, which makes anything a 0."""
    answer = ask(url, route, program, tests)
    answer.raise_for_status()
    result = answer.json()
    passes = result["results"]
    score = sum(passes) / len(passes) if passes else 0.0
    assert len(result["runtimes"]) == len(passes)
    if penalty and score > 0.0:
        multipliers = [(SECONDS - runtime) / SECONDS for runtime in result["runtimes"]]
        penalised = [passes[i] * multipliers[i] for i in range(len(passes))]
        score = sum(penalised) / len(penalised)
    return float(score)


ADD = "def add(a, b):\n    return a + b"
ASSERTS = ["assert add(1, 2) == 3", "assert add(-1, 1) == 0", "assert add(0, 0) == 1"]
PAIRS = [{"input": "1\n", "output": "2\n"}, {"input": "100\n", "output": "101\n"}]
PLUS_ONE = "import sys\nfor line in sys.stdin.read().splitlines():\n    print(int(line) + 1)"


def test_statements_are_passed_or_not(url: str) -> None:
    assert ask(url, "test_program", ADD, ASSERTS).json()["results"] == [1, 1, 0]
    assert verdict(url, "test_program", ADD, ASSERTS) == pytest.approx(2 / 3)
    assert verdict(url, "test_program", ADD, json.dumps(ASSERTS)) == pytest.approx(2 / 3)
    assert verdict(url, "test_program", "syntax error", ASSERTS) == 0


def test_a_program_may_hold_fences_itself(url: str) -> None:
    documented = f'{ADD}\n\nHELP = """\n```python\nadd(1, 2)\n```\n"""'
    assert ask(url, "test_program", documented, ASSERTS).json()["results"] == [1, 1, 0]


def test_programs_that_read_and_print_are_passed_or_not(url: str) -> None:
    assert verdict(url, "test_program_stdio", PLUS_ONE, PAIRS) == 1
    assert verdict(url, "test_program_stdio", "print(2)", PAIRS) == 0.5


def test_runtimes_are_measured_and_make_a_penalty_between_0_and_1(url: str) -> None:
    answer = ask(url, "test_program", ADD, ASSERTS).json()
    assert all(0 < seconds <= SECONDS for seconds in answer["runtimes"][:2])
    assert answer["runtimes"][2] == -1
    assert 0 < verdict(url, "test_program", ADD, ASSERTS, penalty=True) < 2 / 3


def test_a_program_that_hangs_fails_its_test_and_no_other(url: str) -> None:
    hanging = "n = int(input())\nwhile n == 1:\n    pass\nprint(n + 1)"
    assert ask(url, "test_program_stdio", hanging, PAIRS).json()["results"] == [0, 1]


def test_no_tests_have_no_results(url: str) -> None:
    nothing: list[Any] = [[], ""]
    for tests in nothing:
        assert ask(url, "test_program", ADD, tests).json() == {"results": [], "runtimes": []}


PICKLED = base64.b64encode(zlib.compress(b"\x80\x04]\x94.")).decode()


@pytest.mark.parametrize(
    ("route", "tests", "item"),
    [
        ("test_program", PICKLED, None),
        ("test_program", ["assert True", 5], 1),
        ("test_program", {"a": 1}, None),
        ("test_program_stdio", ["assert True"], 0),
        ("test_program_stdio", [{"input": "1", "output": "2", "fn_name": "f"}], 0),
        ("test_program_stdio", [{"input": "1"}], 0),
        ("test_program", ["assert True"] * 11, None),
    ],
)
def test_tests_that_are_not_served_are_named(url: str, route: str, tests: Any, item: int | None) -> None:
    answer = ask(url, route, ADD, tests)
    assert answer.status == 422
    problem = answer.json()["detail"][0]
    assert (problem["item"], problem["field"]) == (item, "tests")
    assert answer.json().keys() == {"detail"}


@pytest.mark.parametrize("route", ["test_program", "test_program_stdio"])
def test_a_service_that_runs_no_programs_says_what_to_configure(gsm8k: str, route: str) -> None:
    answer = ask(gsm8k, route, ADD, PAIRS if route.endswith("stdio") else ASSERTS)
    assert (answer.status, answer.json().keys()) == (501, {"detail"})
    assert "[reward.scorers.code]" in answer.json()["detail"][0]["message"]
