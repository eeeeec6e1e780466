"""The processes that `benchmarks.reward` asks: Redis, reward services, and a bare FastAPI application.

`python -m benchmarks.reward_processes PORT` is the bare application.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field

from benchmarks.pipeline import ROOT, environment, free_port
from services.console.redis_process import find_binary, write_config

START_SECONDS = 120.0


@contextlib.contextmanager
def redis(folder: Path) -> Iterator[str]:
    """A Redis with its data in `folder`; gives its URL."""
    url = f"redis://127.0.0.1:{free_port()}/0"
    with process([find_binary(), str(write_config(url, folder))]):
        yield url


@contextlib.contextmanager
def service(folder: Path, redis_url: str, reward: str, threads: int = 1) -> Iterator[int]:
    """`python -m services.reward` as users start it; gives its port.

    reward: what the tables below `[reward]` hold, as TOML.
    threads: of torch.
    """
    port = free_port()
    config = folder / f"run-{port}.toml"
    config.write_text(
        f'[run]\nname = "benchmark-{port}"\n[model]\npath = "none"\n[redis]\nurl = "{redis_url}"\n'
        f"[reward]\nport = {port}\n{reward}\n",
        encoding="utf-8",
    )
    with process([sys.executable, "-m", "services.reward", "--config", str(config)], threads) as started:
        _wait(f"http://127.0.0.1:{port}/ready", started)
        yield port


@contextlib.contextmanager
def echo() -> Iterator[int]:
    """The bare application; gives its port."""
    port = free_port()
    with process([sys.executable, "-m", "benchmarks.reward_processes", str(port)]) as started:
        _wait(f"http://127.0.0.1:{port}/openapi.json", started)
        yield port


@contextlib.contextmanager
def process(command: list[str], threads: int = 1) -> Iterator["subprocess.Popen[bytes]"]:
    """A child that is ended with the block."""
    variables = environment() | {"OMP_NUM_THREADS": str(threads)}
    child = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=subprocess.DEVNULL)
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(15)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def processor_seconds(pid: int) -> float:
    """User and system time that a process has taken, its children apart."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _wait(url: str, started: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + START_SECONDS
    while True:
        if started.poll() is not None:
            raise RuntimeError(f"{started.args!r} ended with status {started.returncode}")
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(url, timeout=5).status_code == 200:
                return
        if time.monotonic() > until:
            raise RuntimeError(f"{url} did not answer within {START_SECONDS:g} s")
        time.sleep(0.05)


class Item(BaseModel):
    """As `shared.scoring.ScoreItem`, in the way of FastAPI."""

    model_config = ConfigDict(extra="forbid")

    id: str | None = None
    prompt: str = ""
    response: str
    ground_truth: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)


class Request(BaseModel):
    model_config = ConfigDict(extra="forbid")

    items: list[Item]
    scorers: list[str] | None = None


def application() -> FastAPI:
    """Echoes, once with the types of `/v1/score` and once without any."""
    app = FastAPI()

    @app.post("/typed")
    async def typed(body: Request) -> Request:
        return body

    @app.post("/untyped")
    async def untyped(body: dict[str, Any]) -> dict[str, Any]:
        return body

    return app


if __name__ == "__main__":
    uvicorn.run(application(), port=int(sys.argv[1]), log_config=None, access_log=False)
