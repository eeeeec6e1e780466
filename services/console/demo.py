"""The demo: make a mediocre tiny model, train it by PPO through all services, show what it learnt."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from services.console.launcher import Launcher
from services.console.resolved import Resolved, resolve
from services.console.run import conclude, session, train
from services.console.screen import Screen
from services.console.stack import StackError

EXAMPLE = "arithmetic"


def demo(config: Path, seed: int, overrides: Sequence[str]) -> int:
    """Run the whole demo; its exit status.

    Raises:
    ValueError: bad configuration, a port in use, or an unfit Redis.
    """
    started = time.monotonic()
    cache = Path("runs") / "cache" / f"{EXAMPLE}-seed{seed}"
    ours = {
        "run.name": f"demo-{time.strftime('%Y%m%d-%H%M%S')}",
        "run.seed": seed,
        "model.path": cache / "model",
        "learner.prompts": cache / "train.jsonl",
        "learner.heldout": cache / "heldout.jsonl",
    }
    resolved = resolve(config, [*(f"--{key}={value}" for key, value in ours.items()), *overrides])

    def work(launcher: Launcher, screen: Screen) -> int:
        seconds = {"setup": take_setup_seconds()}
        seconds["warm_start"] = warm_start(cache, seed, resolved, launcher, screen)
        return train(resolved, launcher, screen, seconds)

    status = session(resolved.console.stop_timeout, work)
    if status == 0:
        conclude(resolved.run.path, started)
    return status


def warm_start(cache: Path, seed: int, resolved: Resolved, launcher: Launcher, screen: Screen) -> float:
    """Make the model and the prompt files unless they are cached. Returns the seconds it took.

    Raises:
    StackError: it failed; the message shows the end of its output.
    """
    if (cache / "model").is_dir():  # the example puts it in place last, so all is there
        screen.say("example", f"warm start found in {cache}")
        return 0.0
    started = time.monotonic()
    screen.say("example", f"training a tiny model on word problems for about a minute, into {cache}")
    command = [sys.executable, "-m", f"examples.{EXAMPLE}", "--out", str(cache), "--seed", str(seed)]
    child = launcher.start("example", command, resolved.run.path / "logs" / "example.log")
    while not launcher.wait(lambda: child.exit_status() is not None, seconds=0.2):
        for line in child.new_lines():
            screen.say("example", line)
    status = child.exit_status()
    if status:
        last = "\n".join(child.last_lines(15))
        raise StackError(f"the warm start ended with status {status}:\n{last}", status)
    launcher.stop(child)
    return time.monotonic() - started


def take_setup_seconds() -> float:
    """Seconds the set-up script took, once: 0 for the runs after the first."""
    stamp = Path(sys.prefix) / "setup-seconds"
    if not stamp.exists():
        return 0.0
    seconds = float(stamp.read_text())
    stamp.unlink()
    return seconds
