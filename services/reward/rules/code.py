"""Reward for a program that passes test cases, run in the sandbox. Off unless configured."""

import json
import re
import time
from typing import Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from services.reward.protocol import Context, OutOfTime, Scorer, Unscorable
from services.reward.rules.config import RuleConfig
from services.reward.sandbox import Limits, check_isolation, run_python
from shared.scoring import SERVICE_KEY, ScoreItem

FENCE = "```"
_OPENING = re.compile(r"^ {0,3}```python", re.MULTILINE)
_CLOSING = re.compile(r"^ {0,3}```", re.MULTILINE)

UNFENCED = "unfenced"
"""Key of `metadata.rollstream`: true where the whole response is the program, whatever stands in it."""


class CodeConfig(RuleConfig):
    deadline_seconds: float | None = Field(default=60.0, gt=0)
    """For all tests of an item together; past it the item is a `timeout`, without a reward."""
    total_seconds: float = Field(default=30.0, gt=0)
    """What the tests may take together, by the clock; past it the item is a `timeout`, for the machine may
    be busy or the program asleep, and neither is a failed test."""
    test_seconds: float = Field(default=4.0, gt=0)
    """Processor time of one test, rounded up to whole seconds; what needs more fails."""
    memory_mb: int = Field(default=512, ge=64)
    """Address space of the program, which is one process. It must fit into that of the pool's processes."""
    max_tests: int = Field(default=100, ge=1)
    """An item with more tests is invalid."""
    reward: Literal["pass_rate", "all"] = "pass_rate"
    """The share of tests passed, or 1 only if all are."""
    fence: Literal["allowed", "required"] = "required"
    """Whether a program must stand in a Markdown block; without one, `allowed` takes the whole response."""
    isolation: Literal["required", "none"] = "required"
    """`required`: the service does not start where programs cannot be isolated. `none`: for programs that you
    trust, which can then read and send away what the service can."""

    @model_validator(mode="after")
    def _deadline_is_last(self) -> Self:
        if self.deadline_seconds and self.deadline_seconds < self.total_seconds + self.test_seconds + 2:
            raise ValueError("deadline_seconds must be at least total_seconds + test_seconds + 2")
        return self

    def build(self, name: str, context: Context) -> Scorer:
        if self.isolation == "required":
            check_isolation()
        return super().build(name, context)


class Case(NamedTuple):
    """One test: statements that must not raise after the program, or else what it reads and must print."""

    addition: str | None
    stdin: str
    stdout: str


def code_tests(item: ScoreItem, config: CodeConfig) -> float:
    """The share of test cases that the response's last Python program passes, each in a process of its own.

    Tests come with the item: `metadata.test_cases` = {"inputs": [...], "outputs": [...]} for programs that
    read and print (compared without white space at the ends of lines and of the text), or `metadata.tests`, a
    list of statements to append, such as `assert f(2) == 4`, for programs that define functions.

    Raises:
    Unscorable: no tests, or malformed ones.
    OutOfTime: `total_seconds` passed before all tests were decided.
    Source: the formats of ColossalChat's `code_reward_fn` and open-instruct's `/test_program`; unlike there,
    no test at all is not a success.
    """
    cases = read_cases(item.metadata, config.max_tests)
    known = item.metadata.get(SERVICE_KEY)
    if isinstance(known, dict) and known.get(UNFENCED) is True:
        program: str | None = item.response
    else:
        program = last_program(item.response, config.fence == "required")
    if program is None:
        return 0.0
    until, passed = time.monotonic() + config.total_seconds, 0
    for case in cases:
        if _passes(program, case, until - time.monotonic(), config):
            passed += 1
        elif config.reward == "all":
            return 0.0
    return passed / len(cases)


def last_program(response: str, fence_required: bool) -> str | None:
    """The text after the last Python fence, up to the next fence.

    Fences that begin a line go before others, which may be part of the program, as in its docstring.
    """
    openings = [fence.end() for fence in _OPENING.finditer(response)]
    found = response.rfind(f"{FENCE}python")
    if found < 0:
        return None if fence_required else response
    start = openings[-1] if openings else found + len(f"{FENCE}python")
    closing = _CLOSING.search(response, start)
    end = closing.start() if closing else response.find(FENCE, start)
    return response[start:end] if end >= 0 else response[start:]


def read_cases(metadata: dict[str, Any], most: int) -> list[Case]:
    """Raises:
    Unscorable: no tests, more than `most`, or malformed ones.
    """
    tests, pairs = metadata.get("tests"), metadata.get("test_cases")
    if isinstance(pairs, str):
        try:
            pairs = json.loads(pairs)
        except (ValueError, RecursionError) as error:
            raise Unscorable(f"has metadata.test_cases that is no JSON: {error}") from error
    cases: list[Case] = []
    if isinstance(tests, list) and all(isinstance(test, str) for test in tests):
        cases = [Case(test, "", "") for test in tests]
    elif isinstance(pairs, dict):
        inputs, outputs = pairs.get("inputs"), pairs.get("outputs")
        if not (isinstance(inputs, list) and isinstance(outputs, list) and len(inputs) == len(outputs)):
            raise Unscorable("needs as many inputs as outputs in metadata.test_cases")
        if not all(isinstance(text, str) for text in inputs + outputs):
            raise Unscorable("needs texts as inputs and outputs in metadata.test_cases")
        cases = [Case(None, *pair) for pair in zip(inputs, outputs, strict=True)]
    if not 1 <= len(cases) <= most:
        raise Unscorable(
            f"needs 1 to {most} tests in metadata.test_cases or metadata.tests; found {len(cases)}"
        )
    return cases


def _passes(program: str, case: Case, seconds: float, config: CodeConfig) -> bool:
    """Raises:
    OutOfTime: it could not be decided within `seconds`.
    """
    if seconds > 0:
        limits = Limits(config.test_seconds, config.memory_mb, seconds)
        ending = run_python(program, case.stdin, limits, config.isolation == "required", case.addition)
        if ending.status != "timeout":
            passed = ending.status == "ok"
            return passed and (case.addition is not None or _lines(ending.output) == _lines(case.stdout))
    raise OutOfTime(f"did not decide all tests in total_seconds = {config.total_seconds:g}")


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]
