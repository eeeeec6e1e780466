"""Programs against test cases: what is scored, and what a program cannot do."""

import socket
import subprocess
import sys
from typing import Any

import pytest

from services.reward.protocol import OutOfTime, Unscorable
from services.reward.rules.code import last_program
from services.reward.sandbox import CannotIsolate, Ending, Limits, run_python
from tests.reward.rules.asking import ask, configure

try:
    run_python("", "", Limits(cpu_seconds=10, memory_mb=256))
    ISOLATED = True
except CannotIsolate:
    ISOLATED = False

PAIRS = {"test_cases": {"inputs": ["1\n2\n", "3\n4\n", "5\n5\n"], "outputs": ["3\n", "7", "10 \n\n"]}}
isolated_only = pytest.mark.skipif(not ISOLATED, reason="this system permits no isolation")


def fenced(program: str) -> str:
    return f"Here it is:\n```python\n{program}\n```\nDone."


def score(program: str, metadata: dict[str, Any] = PAIRS, **parameters: Any) -> float:
    isolation = "required" if ISOLATED else "none"
    return ask("code_tests", fenced(program), None, metadata, isolation=isolation, **parameters)


def run(program: str, seconds: float = 10, memory_mb: int = 256) -> Ending:
    return run_python(program, "", Limits(10, memory_mb, seconds), ISOLATED)


def test_the_share_of_passed_tests_is_the_reward() -> None:
    assert score("print(int(input()) + int(input()))") == 1
    assert score("print(2 * int(input()) + 1)") == pytest.approx(2 / 3)
    assert score("print(2 * int(input()) + 1)", reward="all") == 0
    assert score("print(int(input()) + int(input()))", reward="all") == 1
    assert score("this is no Python") == 0


def test_statements_may_test_functions() -> None:
    tests = {"tests": ["assert double(2) == 4", "assert double('a') == 'aa'", "assert double(0) == 1"]}
    assert score("def double(x):\n    return 2 * x", tests) == pytest.approx(2 / 3)


def test_the_last_fenced_program_counts() -> None:
    assert score("print(0)\n```\n```python\nprint(int(input()) + int(input()))") == 1
    assert ask("code_tests", "print(0)", metadata=PAIRS) == 0, "without a fence there is no program"


def test_a_fence_inside_a_line_of_the_program_does_not_end_it() -> None:
    documented = 'HELP = "as in ```python add(1)``` or ```add(2)```"\nprint(1)'
    assert last_program(fenced(documented), True) == f"\n{documented}\n"
    assert last_program("So: ```python\nprint(1)```", True) == "\nprint(1)"
    assert last_program("```python\nprint(1)", True) == "\nprint(1)"


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"tests": []},
        {"tests": [1]},
        {"test_cases": "{"},
        {"test_cases": {"inputs": ["1"], "outputs": []}},
        {"test_cases": {"inputs": [1], "outputs": ["1"]}},
        {"tests": ["pass"] * 101},
    ],
)
def test_without_proper_tests_nothing_is_scored(metadata: dict[str, Any]) -> None:
    with pytest.raises(Unscorable, match="test"):
        score("print(1)", metadata)


BLIND = """
import os
for descriptor in range(3, 64):
    try:
        os.write(descriptor, b"+" * 99)
    except OSError:
        pass
os._exit(0)
"""


@pytest.mark.parametrize(
    "program",
    [
        "import os; os._exit(0)",
        "raise SystemExit",
        "import sys; sys.exit(0)",
        "import os; print('ok', flush=True); os._exit(0)",
        "import atexit, os; atexit.register(os._exit, 0)\nraise ValueError",
        "import atexit, os; atexit.register(os._exit, 0)\ndef f(): raise SystemExit",
        "class AssertionError(Exception): pass\nimport builtins\nbuiltins.AssertionError = AssertionError",
        "import builtins\nbuiltins.exec = builtins.compile = lambda *_: None",
        "import os\nread = os.read\nos.read = lambda *_: b'1 == 1\\n'\nos.write = lambda *_: 1",
        "import sys, os\nsys.excepthook = lambda *_: os._exit(0)",
        BLIND,
        "import os\ndef f(): os._exit(0)",
    ],
)
def test_a_program_passes_no_test_by_ending_early_or_by_replacing_what_tests_it(program: str) -> None:
    tests = ["assert 1 == 2", "assert f() == 2"]
    assert score(program, {"tests": tests}) == 0
    assert score("f = lambda: 2", {"tests": tests}) == 0.5, "the second test can be passed"


def test_a_program_that_ends_before_its_test_has_not_passed_even_a_true_one() -> None:
    assert score("import os; os._exit(0)", {"tests": ["assert True"]}) == 0
    assert score("raise SystemExit", {"tests": ["assert True"]}) == 0
    assert score("def f(): return 1\nassert __name__ == '__main__'", {"tests": ["assert f()"]}) == 1


def test_a_program_that_computes_for_ever_fails_its_test() -> None:
    assert score("while True: pass", test_seconds=0.5, total_seconds=30.0) == 0
    ignoring = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
    assert run_python(ignoring, "", Limits(1, 256, 30), ISOLATED).status == "slow"


def test_time_that_the_clock_took_is_a_timeout_and_never_a_failed_test() -> None:
    assert run("import time; time.sleep(60)", seconds=0.3).status == "timeout"
    with pytest.raises(OutOfTime, match="total_seconds = 1"):
        score("import time; time.sleep(60)", total_seconds=1.0)
    with pytest.raises(OutOfTime):
        score("import time\ndef f(): time.sleep(60)", {"tests": ["f()"]}, total_seconds=1.0)


def test_memory_and_disk_are_limited() -> None:
    assert "MemoryError" in run("bytearray(10**9)").errors
    big = run("open('f', 'wb').write(bytes(17 * 2**20))")
    assert big.status == "failed"
    endless = run("import sys\nwhile True: sys.stdout.write('x' * 10**6)")
    assert endless.status == "failed"
    assert len(endless.output) <= 16 * 2**20


@isolated_only
@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("open('/etc/passwd')", "No such file"),
        ("open('/proc/self/environ')", "No such file"),
        ("open('/usr/x', 'w')", "Read-only file system"),
        ("import os; os.setuid(0)", "Invalid argument"),
        ("import os; os.kill(2, 9)", "No such process"),
    ],
)
def test_a_program_reaches_nothing_of_ours(program: str, error: str) -> None:
    ending = run(program)
    assert ending.status == "failed"
    assert error in ending.errors


@isolated_only
def test_a_program_has_no_network_no_environment_and_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLSTREAM_REWARD_TOKEN", "a-secret-of-the-service")
    ending = run("import os; print(sorted(os.environ), os.listdir('.'), os.getpid())")
    assert ending.output == "['HOME', 'LANG', 'PATH', 'PYTHONHASHSEED'] ['main.py'] 1\n"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        ending = run(f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)")
    assert "Network is unreachable" in ending.errors


FORKING = """
import os
started = 0
for _ in range(40):
    try:
        if os.fork() == 0:
            held = bytearray(150 * 2**20)
            os.write(1, b"held 150 MB\\n")
            os.read(0, 1)
    except OSError:
        continue
    started += 1
print(started)
"""

BESIDES = """
import ctypes, os, subprocess, threading
libc = ctypes.CDLL(None)
print(libc.shmget(0, 150 * 2**20, 0o1600), libc.unshare(0x10000000))
for start in (lambda: os.memfd_create("m"), lambda: subprocess.run(["/bin/true"])):
    try:
        start()
    except PermissionError:
        print("refused")
thread = threading.Thread(target=print, args=["a thread"])
thread.start()
thread.join()
"""


def test_a_program_is_one_process_so_that_its_memory_is_bounded_as_a_whole() -> None:
    assert run(FORKING).output == "0\n"
    ending = run(BESIDES)
    assert ending.output.split("\n") == ["-1 -1", "refused", "refused", "a thread", ""], ending.errors


@isolated_only
def test_where_programs_cannot_be_isolated_the_service_does_not_start() -> None:
    forbid = "echo 0 > /proc/sys/user/max_user_namespaces && exec "
    check = "from services.reward.sandbox import check_isolation; check_isolation()"
    command = ["unshare", "-Ur", "sh", "-c", f'{forbid} "$0" -c "$1"', sys.executable, check]
    try:
        told = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("no unshare command")
    assert told.returncode == 1
    assert "ValueError: programs cannot be isolated on this system" in told.stderr
    assert "unshare: No space left on device" in told.stderr


def test_a_deadline_before_the_end_of_the_tests_is_refused() -> None:
    with pytest.raises(ValueError, match="deadline_seconds must be at least"):
        configure("code_tests", deadline_seconds=5)
