"""Whole runs of the demo task as child processes, through `rollstream up` and all its services."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CACHE = ROOT / "runs" / "cache"


def start_of(seed: int, cache: Path = CACHE) -> Path:
    """The folder with the checkpoint and the prompt files of a seed, made if it is not there: a minute."""
    folder = cache.resolve() / f"arithmetic-seed{seed}"
    if not (folder / "model").is_dir():
        command = [sys.executable, "-m", "examples.arithmetic", "--out", str(folder), "--seed", str(seed)]
        subprocess.run(command, cwd=ROOT, check=True)
    return folder


def run(config: Path, start: Path, folder: Path, overrides: Mapping[str, Any]) -> Path:
    """Train from a start, with every service on a free port, and return the run's folder, made anew.

    Args:
        start: from `start_of`.
        folder: of the run; its output goes to a .log file beside it.
        overrides: values by dotted key, such as `learner.lora.rank`.

    Raises:
        RuntimeError: the run failed; the message has the end of its output.
    """
    folder = folder.resolve()
    if folder.exists():
        shutil.rmtree(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    ours = {
        "run.dir": folder.parent,
        "run.name": folder.name,
        "model.path": start / "model",
        "learner.prompts": start / "train.jsonl",
        "redis.url": f"redis://127.0.0.1:{free_port()}/0",
        "rollout.port": 0,
        "reward.port": 0,
    }
    command = [sys.executable, "-m", "services.console", "up", "--config", str(config.resolve())]
    command += [f"--{key}={text(value)}" for key, value in {**ours, **overrides}.items()]
    log = folder.with_suffix(".log")
    with log.open("w", encoding="utf-8") as output:
        done = subprocess.run(command, cwd=ROOT, env=environment(), stdout=output, stderr=subprocess.STDOUT)
    if done.returncode:
        last = "\n".join(log.read_text(encoding="utf-8").splitlines()[-30:])
        raise RuntimeError(f"the run {folder.name} ended with status {done.returncode}:\n{last}")
    return folder


def rows(path: Path) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def flat(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Nested tables as dotted keys with their values."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def environment() -> dict[str, str]:
    """This one without overrides for another run, and without a number of threads: services know theirs."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ROLLSTREAM_")}
    kept.pop("OMP_NUM_THREADS", None)
    return kept | {"PYTHONPATH": str(ROOT)}


def text(value: Any) -> str:
    """As the command line reads it."""
    return json.dumps(value) if isinstance(value, bool | list) else str(value)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
