"""SandboxFusion: what counts as a pass, and that nothing else does. The server runs the programs for real."""

import subprocess
import sys
import time
from typing import Any

import pytest

from services.reward.external.config import ExternalConfig, JudgeConfig
from services.reward.external.sandbox import last_program
from services.reward.protocol import Failure
from shared.scoring import ScoreItem
from tests.reward.external.servers import Reply, ask, scorer_of, serving

DOUBLE = "Thus:\n```python\nprint(2 * int(input()))\n```\n"
FUNCTION = "```python\ndef double(x):\n    return 2 * x\n```"


def run_code(body: Any) -> Reply:
    """`/run_code` as SandboxFusion answers it, for trusted programs."""
    done = subprocess.run(
        [sys.executable, "-c", body["code"]], input=body["stdin"], capture_output=True, text=True, timeout=20
    )
    run = {
        "status": "Finished",
        "execution_time": 0.1,
        "return_code": done.returncode,
        "stdout": done.stdout,
        "stderr": done.stderr,
    }
    return Reply({"status": "Failed" if done.returncode else "Success", "message": "", "run_result": run})


def item(response: str, tests: Any) -> ScoreItem:
    """`tests`: texts that assert, or a dict of inputs and outputs."""
    return ScoreItem(
        response=response, metadata={"test_cases" if isinstance(tests, dict) else "tests": tests}
    )


def pairs(*cases: tuple[str, str]) -> dict[str, list[str]]:
    return {"inputs": [given for given, _ in cases], "outputs": [expected for _, expected in cases]}


def test_the_reward_is_the_share_of_tests_that_pass() -> None:
    tests = pairs(("2", "4"), ("3", "6\n"), ("3", "7"))
    asserted = ["assert double(2) == 4", "assert double(2) == 5"]
    outcomes = ask(run_code, [item(DOUBLE, tests), item(FUNCTION, asserted)], contract="sandbox_fusion")
    assert outcomes == [pytest.approx(2 / 3), 0.5]


@pytest.mark.parametrize(
    "program", ["import sys\nsys.exit(0)", "raise SystemExit", "import os\nos._exit(0)", "1/0"]
)
def test_a_program_that_ends_before_its_assertions_has_not_passed(program: str) -> None:
    given = item(f"```python\n{program}\n```", ["assert 1 == 1"])
    assert ask(run_code, [given], contract="sandbox_fusion") == [0.0]


def test_a_response_without_a_program_fails_its_tests() -> None:
    assert ask(run_code, [item("I cannot.", ["assert True"])], contract="sandbox_fusion") == [0.0]


@pytest.mark.parametrize("tests", [None, [], "assert True", [3], {}, {"inputs": ["1"]}, pairs()])
def test_without_tests_there_is_no_pass(tests: Any) -> None:
    (outcome,) = ask(run_code, [item(DOUBLE, tests)], contract="sandbox_fusion")
    assert isinstance(outcome, Failure) and outcome.status == "invalid"


FINISHED = {"status": "Finished", "return_code": 0, "stdout": "4"}


@pytest.mark.parametrize(
    "reply",
    [
        {},
        [],
        None,
        {"status": "SandboxError", "run_result": FINISHED},
        {"status": "Success"},
        {"status": "Success", "run_result": None},
        {"status": "Success", "run_result": {}},
        {"status": "Success", "run_result": {**FINISHED, "status": "TimeLimitExceeded"}},
        {"status": "Success", "run_result": {**FINISHED, "return_code": None}},
        {"status": "Success", "run_result": {**FINISHED, "return_code": False}},
        {"status": "Success", "run_result": {**FINISHED, "stdout": None}},
    ],
)
def test_an_empty_or_odd_verdict_is_neither_pass_nor_fail(reply: Any) -> None:
    given = item(DOUBLE, pairs(("2", "4")))
    (outcome,) = ask(lambda _: Reply(reply), [given], contract="sandbox_fusion")
    assert isinstance(outcome, Failure) and outcome.status == "error"


def test_a_program_past_its_time_has_failed() -> None:
    reply = {"status": "Failed", "run_result": {"status": "TimeLimitExceeded", "return_code": None}}
    given = item(DOUBLE, pairs(("2", "4")))
    assert ask(lambda _: Reply(reply), [given], contract="sandbox_fusion") == [0.0]


def test_an_item_whose_tests_take_too_long_does_not_close_the_sandbox_to_others() -> None:
    def slow(body: Any) -> Reply:
        time.sleep(0.2)
        return run_code(body)

    long = item(DOUBLE, pairs(*[("2", "4")] * 9))
    sandbox: dict[str, Any] = {"compile_seconds": 0.2, "run_seconds": 0.2}
    settings: dict[str, Any] = {"contract": "sandbox_fusion", "sandbox": sandbox, "breaker_failures": 1}
    with serving(slow) as server, scorer_of(server.url, **settings) as scorer:
        (late,) = scorer.score([long], 0.5)
        assert isinstance(late, Failure) and late.status == "timeout"
        assert scorer.score([item(DOUBLE, pairs(("2", "4")))], 20.0) == [1.0]


def test_contracts_that_take_long_have_the_time_for_it() -> None:
    judge = ExternalConfig(
        contract="chat_judge", url="http://rm/", judge=JudgeConfig(rubric="Right is good.")
    )
    assert judge.deadline_seconds == 60
    assert ExternalConfig(contract="openrlhf", url="http://rm/").deadline_seconds is None
    assert ExternalConfig(contract="sandbox_fusion", url="http://rm/").deadline_seconds == 120
    with pytest.raises(ValueError, match=r"deadline_seconds = 15.*may be over before one test.*= 22"):
        ExternalConfig(contract="sandbox_fusion", url="http://rm/", deadline_seconds=15)


def test_the_last_closed_block_with_text_is_the_program() -> None:
    assert last_program("```\na\n```\n```py\nb\n```\n```\n\n```") == "b\n"
    assert last_program("```py\nb\n") is None
    assert last_program("```\n" * 30_000 + "x") is None
