"""Programs run by SandboxFusion against an item's tests: the reward is the share that pass."""

import re
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from services.reward.external.client import CallFailed
from services.reward.external.config import ExternalConfig
from services.reward.protocol import Outcome
from services.reward.rules.code import Case, read_cases
from shared.scoring import ScoreItem

Post = Callable[[Any], Awaitable[Any]]

_FENCE = re.compile(r"^```[^\n`]*\n(.*?)^```", re.DOTALL | re.MULTILINE)


async def run_tests(post: Post, item: ScoreItem, config: ExternalConfig) -> Outcome:
    """The share of the item's tests that its program passes. One request per test, one after the other.

    Tests are those of the rule `code_tests`; `metadata.tests` are statements of Python.

    Raises:
    Unscorable: no tests, or malformed ones.
    CallFailed: the sandbox failed, or did not say how the program ended; a program that failed is 0.
    Source: ByteDance SandboxFusion, `POST /run_code`; it answers 200 also for its own errors.
    """
    cases = read_cases(item.metadata, config.sandbox.max_tests)
    program = last_program(item.response)
    if program is None:
        return 0.0
    passed = [await _passes(post, program, case, config) for case in cases]
    return sum(passed) / len(passed)


def last_program(response: str) -> str | None:
    """The last fenced block of code; None without one that is closed and has text."""
    blocks = [block for block in _FENCE.findall(response) if block.strip()]
    return blocks[-1] if blocks else None


async def _passes(post: Post, program: str, case: Case, config: ExternalConfig) -> bool:
    if case.addition is None:
        output = await _run(post, program, case.stdin, config)
        return output is not None and _same_lines(output, case.stdout)
    # A program that ends early with status 0 has not passed: the nonce is printed after the assertions.
    nonce = secrets.token_hex(8)
    output = await _run(post, f"{program}\n{case.addition}\nprint({nonce!r})\n", case.stdin, config)
    return output is not None and output.rstrip().endswith(nonce)


async def _run(post: Post, code: str, stdin: str, config: ExternalConfig) -> str | None:
    """What the program printed; None if it failed, was ended or did not compile."""
    sandbox = config.sandbox
    reply = await post({
        "code": code,
        "language": sandbox.language,
        "stdin": stdin,
        "compile_timeout": sandbox.compile_seconds,
        "run_timeout": sandbox.run_seconds,
        "memory_limit_MB": sandbox.memory_mb,
        "files": {},
        "fetch_files": [],
    })  # fmt: skip
    if not isinstance(reply, dict) or reply.get("status") not in ("Success", "Failed"):
        raise CallFailed(f"got no verdict from the sandbox: {str(reply)[:200]!r}")
    result = reply.get("run_result")
    if reply["status"] == "Failed" and (result is None or isinstance(result, dict)):
        return None
    if not isinstance(result, dict) or result.get("status") != "Finished":
        raise CallFailed(f"got success from the sandbox without a finished run: {str(result)[:200]!r}")
    code_returned, output = result.get("return_code"), result.get("stdout")
    if type(code_returned) is not int or not isinstance(output, str):
        raise CallFailed("got a finished run from the sandbox without its return code or output")
    return output if code_returned == 0 else None


def _same_lines(output: str, expected: str) -> bool:
    """Equality but for spaces at the ends of lines and empty lines at the end."""
    left, right = ([line.rstrip() for line in text.rstrip().splitlines()] for text in (output, expected))
    return left == right
