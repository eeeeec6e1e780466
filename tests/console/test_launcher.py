"""The launcher with real child processes: order, exit statuses, and nobody left behind."""

import os
import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest

from services.console.child import Child
from services.console.launcher import Interrupted, Launcher
from tests.console.processes import (
    STUBBORN,
    TELLS_ITS_END,
    WITH_HELPER,
    pid_in,
    python,
    runs,
    wait_until,
)

LAUNCHES_AND_WAITS = """
import sys, time
from pathlib import Path
from services.console.launcher import Launcher
with Launcher(5) as launcher:
    child = launcher.start("service", sys.argv[2:], Path(sys.argv[1]) / "service.log")
    (Path(sys.argv[1]) / "child").write_text(f"{child.group}\\n")
    launcher.wait(lambda: False, 600)
"""


def is_up(child: Child) -> bool:
    return bool(child.last_lines(1))


def has_ended(child: Child) -> bool:
    return child.exit_status() is not None


def test_children_are_asked_to_finish_the_last_started_first(tmp_path: Path) -> None:
    record = tmp_path / "record"
    with Launcher(stop_timeout=10) as launcher:
        for name in ("redis", "rollout", "learner"):
            child = launcher.start(name, python(TELLS_ITS_END, record, name), tmp_path / f"{name}.log")
            wait_until(partial(is_up, child))
    assert record.read_text().split() == ["learner", "rollout", "redis"]


def test_a_child_that_does_not_listen_is_killed(tmp_path: Path) -> None:
    with Launcher(stop_timeout=0.2) as launcher:
        child = launcher.start("service", python(STUBBORN), tmp_path / "log")
        wait_until(partial(is_up, child))
    assert child.exit_status() == 128 + signal.SIGKILL


def test_helpers_in_sessions_of_their_own_end_with_their_service(tmp_path: Path) -> None:
    with Launcher(stop_timeout=5) as launcher:
        launcher.start("service", python(WITH_HELPER, tmp_path / "helper", 600), tmp_path / "log")
        helper = pid_in(tmp_path / "helper")
        assert runs(helper)
    wait_until(lambda: not runs(helper))


def test_helpers_of_a_service_that_died_by_itself_are_killed(tmp_path: Path) -> None:
    with Launcher(stop_timeout=5) as launcher:
        child = launcher.start("service", python(WITH_HELPER, tmp_path / "helper", 0), tmp_path / "log")
        helper = pid_in(tmp_path / "helper")
        assert launcher.wait(partial(has_ended, child), seconds=120)
        assert runs(helper)
        launcher.stop(child)
        wait_until(lambda: not runs(helper))


def test_a_killed_launcher_leaves_no_process_behind(tmp_path: Path) -> None:
    service = python(WITH_HELPER, tmp_path / "helper", 600)
    with subprocess.Popen(python(LAUNCHES_AND_WAITS, tmp_path, *service)) as launcher:
        child, helper = pid_in(tmp_path / "child"), pid_in(tmp_path / "helper")
        assert runs(child) and runs(helper)
        launcher.kill()
    wait_until(lambda: not runs(child) and not runs(helper))


def test_children_are_stopped_also_when_the_guard_was_killed(tmp_path: Path) -> None:
    with Launcher(stop_timeout=5) as launcher:
        children = [launcher.start(name, python(TELLS_ITS_END, tmp_path / "ends", name), tmp_path / name)
                    for name in ("one", "two")]  # fmt: skip
        for child in children:
            wait_until(partial(is_up, child))
        launcher._guard.kill()
        launcher._guard.wait()
    assert (tmp_path / "ends").read_text().split() == ["two", "one"]


def test_a_signal_interrupts_the_wait_and_names_the_exit_status(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Launcher(stop_timeout=5) as launcher:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted, match="SIGTERM") as interruption:
            launcher.wait(lambda: False, seconds=120)
    assert interruption.value.exit_status == 143
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_signal_ends_the_patience(tmp_path: Path) -> None:
    with Launcher(stop_timeout=600) as launcher:
        child = launcher.start("service", python(STUBBORN), tmp_path / "log")
        wait_until(partial(is_up, child))
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
    assert child.exit_status() == 128 + signal.SIGKILL


def test_a_childs_exit_status_is_its_own_or_tells_the_signal(tmp_path: Path) -> None:
    with Launcher(stop_timeout=5) as launcher:
        for code, expected in (("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)):
            child = launcher.start("service", python(code), tmp_path / "log")
            assert launcher.wait(partial(has_ended, child), seconds=120)
            assert child.exit_status() == expected


def test_new_lines_come_once_and_only_when_whole(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("from an earlier process\n")
    with Launcher(stop_timeout=5) as launcher:
        code = "import sys; sys.stderr.write('one\\ntwo\\nthr'); sys.stderr.flush()"
        child = launcher.start("service", python(code), log)
        assert launcher.wait(partial(has_ended, child), seconds=120)
        assert child.new_lines() == ["one", "two"]
        with log.open("a") as more:
            more.write("ee\n")
        assert child.new_lines() == ["three"]
        assert child.new_lines() == []
        assert child.last_lines(2) == ["two", "three"]
