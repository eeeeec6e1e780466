"""One training run on this machine, from the first process to the report."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from rich.console import Console

from services.console import redis_process, report
from services.console.launcher import Interrupted, Launcher
from services.console.progress import Progress
from services.console.resolved import Resolved
from services.console.screen import Screen
from services.console.stack import Stack, StackError
from services.console.view import run_panel
from shared.stream import Streams, connect

VIEW_SECONDS = 1.0


class Watcher:
    """Turns what happens in a run into lines and views on the screen."""

    def __init__(self, streams: Streams, resolved: Resolved, screen: Screen) -> None:
        self._progress = Progress(streams, with_past=False)
        self._run = resolved.run.name
        self._total_steps = resolved.tables["learner"]["steps"]
        self._screen = screen
        self._started = time.monotonic()
        self._next_look = 0.0
        self._unreachable = False

    def look(self) -> None:
        """Tell what is new, at most once a second."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + VIEW_SECONDS
        self.tell()

    def tell(self) -> None:
        try:
            self._progress.refresh()
        except redis.RedisError as error:
            if not self._unreachable:
                self._screen.say("console", f"Redis does not answer: {error}", "yellow")
            self._unreachable = True
            return
        self._unreachable = False
        elapsed = time.monotonic() - self._started
        self._screen.show(run_panel(self._progress, self._run, self._total_steps, elapsed))


def train(resolved: Resolved, launcher: Launcher, screen: Screen, seconds: Mapping[str, float]) -> int:
    """Start the stack and watch it until the learner ends; after a success complete its report.

    Args:
        seconds: what earlier stages took, for the report.

    Returns the learner's exit status.

    Raises:
    ValueError: a port is in use, or Redis is not fit.
    StackError: a service cannot be started or kept alive.
    Interrupted: a signal asked to stop.
    """
    started = time.monotonic()
    with connect(resolved.redis_url, timeout=2.0) as client:
        client.set_retry(Retry(NoBackoff(), 0))  # while Redis is down, this process has to start it again
        stack = Stack(resolved, launcher, screen, client)
        stack.start_redis()
        resolved.save()
        redis_version = redis_process.server_version(client)
        watcher = Watcher(Streams(client, resolved.run.name), resolved, screen)
        stack.start_services()
        ready = time.monotonic()
        status = stack.run(watcher.look)
        watcher.tell()
    if status == 0:
        report.complete(resolved.run.path, {**seconds, "startup": ready - started}, redis_version)
    return status


def session(stop_timeout: float, work: Callable[[Launcher, Screen], int]) -> int:
    """Do `work` with child processes and a screen; failures are told and become an exit status."""
    with Screen(Console(highlight=False)) as screen, Launcher(stop_timeout) as launcher:
        try:
            return work(launcher, screen)
        except StackError as error:
            screen.fail(str(error))
            return error.exit_status
        except redis.RedisError as error:
            screen.fail(f"Redis does not answer: {error}")
            return 1
        except Interrupted as interruption:
            screen.say("console", f"{interruption}; stopping the services")
            return interruption.exit_status


def conclude(run: Path, started: float) -> None:
    """Plot a finished run, complete its times, print what it reached and where its files are.

    Args:
        started: when the command began, of the monotonic clock.
    """
    console = Console(highlight=False)
    plot = report.plot(run)
    facts = report.add_total(run, started)
    samples = report.samples_table(run, facts["steps"])
    for table in (samples, report.before_after_table(facts)):
        if table:
            console.print(table)
    checkpoints = sorted((run / "checkpoints").glob("step-*/policy"))
    took = ", ".join(f"{name} {value:g} s" for name, value in facts["seconds"].items())
    console.print(f"{facts['steps']} steps; {took}", soft_wrap=True)
    for label, path in (
        ("report", run / "report.json"),
        ("plot", plot),
        ("model", checkpoints[-1]),
    ):
        console.print(f"{label:<7}{path}", soft_wrap=True)
    console.print(f"serve it with: vllm serve {checkpoints[-1]}", soft_wrap=True)
