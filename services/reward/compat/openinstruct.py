"""open-instruct: `--code_api_url http://HOST:8001/test_program`; the client makes the stdio URL from it.

Contract: allenai/open-instruct `open_instruct/code_utils/api.py`, commit 00ba9fe, and `CodeVerifier` in
`open_instruct/ground_truth_utils.py`. It posts `{"program": str, "tests": any, "max_execution_time": float}`
and reads `{"results": [0 or 1], "runtimes": [seconds]}`, -1 seconds for a test that was not passed. It waits
10 times max_execution_time, at least 30 and at most 300 seconds; its urllib3 retries cover lost connections
only, for they do not apply to POST. Whatever goes wrong is a reward of 0 with a warning in its log; no answer
can change that.

Served by the configured rule `code_tests` in its sandbox, one test at a time and each within the limits of
that rule. The original's tests may also be pickled; those are refused, since reading them could run any code.
"""

import json
import time
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, TypeAdapter, ValidationError

from services.reward.config import RewardConfig
from services.reward.door import Door
from services.reward.problems import Problem, refusal, refusal_of
from services.reward.routes import Routes
from services.reward.rules.code import UNFENCED, CodeConfig
from shared.scoring import SERVICE_KEY, ScoreItem

NOT_PASSED = -1.0
"""Seconds of a test that was not passed, as in the original."""


class TestProgram(BaseModel):
    program: str
    tests: list[Any] | str
    """A list, or JSON of one."""
    max_execution_time: FiniteFloat = Field(default=1.0, gt=0)
    """Seconds that the client grants a test. What a test may take is `test_seconds` of the rule; no runtime
    is told as longer than this, for the client takes its share of it as a penalty."""


class Stdio(BaseModel):
    model_config = ConfigDict(extra="forbid")

    input: str
    output: str
    testtype: str | None = None


class Verdicts(BaseModel):
    results: list[int]
    """1 for each test that was passed, else 0."""
    runtimes: list[float]
    """Seconds of each, the start of its process included; -1 where it was not passed."""


STATEMENTS = TypeAdapter(list[str])
PAIRS = TypeAdapter(list[Stdio])


def test_program(wanted: TestProgram, door: Door) -> Verdicts:
    """open-instruct's code tests: statements appended to the program, such as `assert f(2) == 4`."""
    return _run(wanted, [{"tests": [test]} for test in _tests(wanted, STATEMENTS)], door)


def test_program_stdio(wanted: TestProgram, door: Door) -> Verdicts:
    """open-instruct's code tests: what the program reads and must print, as `{"input", "output"}`."""
    pairs = _tests(wanted, PAIRS)
    cases = [{"test_cases": {"inputs": [pair.input], "outputs": [pair.output]}} for pair in pairs]
    return _run(wanted, cases, door)


def _tests(wanted: TestProgram, kind: TypeAdapter[Any]) -> list[Any]:
    tests: Any = wanted.tests
    if isinstance(tests, str):
        try:
            tests = json.loads(tests) if tests else []
        except (ValueError, RecursionError) as error:
            raise refusal(
                422, "neither a list nor JSON of one; pickled tests are not read", None, "tests"
            ) from error
    try:
        return list(kind.validate_python(tests))
    except ValidationError as error:
        places = [(mistake["loc"], mistake["msg"]) for mistake in error.errors(include_url=False)]
        problems = [
            Problem(item=loc[0] if loc and isinstance(loc[0], int) else None, field="tests", message=message)
            for loc, message in places
        ]
        raise refusal_of(422, problems) from error


def _run(wanted: TestProgram, tests: list[dict[str, Any]], door: Door) -> Verdicts:
    name, table = _code_scorer(door.config)
    if len(tests) > table.max_tests:
        raise refusal(422, f"{len(tests)} tests; at most max_tests = {table.max_tests}", None, "tests")
    until = time.monotonic() + table.total_seconds
    verdicts = Verdicts(results=[], runtimes=[])
    whole = {SERVICE_KEY: {UNFENCED: True}}  # in fences it would end at the first that it has itself
    for test in tests:
        started = time.monotonic()
        if started >= until:  # a test that was not run is not one that failed
            raise refusal(504, f"the tests took longer than total_seconds = {table.total_seconds:g}")
        ((reward, _),) = door.score_all([ScoreItem(response=wanted.program, metadata=test | whole)], [name])
        passed = reward == 1
        seconds = time.monotonic() - started
        verdicts.results.append(int(passed))
        verdicts.runtimes.append(min(seconds, wanted.max_execution_time) if passed else NOT_PASSED)
    return verdicts


def _code_scorer(config: RewardConfig) -> tuple[str, CodeConfig]:
    for name, table in config.scorers.items():
        if isinstance(table, CodeConfig):
            return name, table
    raise refusal(
        501,
        'no programs are run here: configure [reward.scorers.code] with rule = "code_tests" '
        "(and weight = 0 if it is to serve this route alone)",
    )


ASSERTS = {
    "program": "def add(a, b): return a + b",
    "tests": ["assert add(1, 2) == 3", "assert add(0, 0) == 1"],
    "max_execution_time": 1.0,
}
PRINTS = {
    "program": "print(int(input()) + 1)",
    "tests": [{"input": "1\n", "output": "2\n"}, {"input": "1\n", "output": "1\n"}],
    "max_execution_time": 1.0,
}
VERDICTS = {"results": [1, 0], "runtimes": [0.08, NOT_PASSED]}


def add(routes: Routes) -> None:
    for path, answer, asked in (
        ("/test_program", test_program, ASSERTS),
        ("/test_program_stdio", test_program_stdio, PRINTS),
    ):
        routes.post(path, TestProgram, Verdicts, answer, (asked, VERDICTS), "open-instruct", True)
