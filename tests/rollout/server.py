"""A real rollout service in a process of its own, and a client that pushes weights as the learner does."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import torch
from safetensors.torch import save

from shared.stream import Streams
from shared.weights import PartInfo, TensorInfo, WeightManifest, WeightStatus, sha256
from shared.workers import list_workers

TOKEN = "a-token-for-the-tests-only"
STARTUP_SECONDS = 240
_RUN = "\nimport runpy; runpy.run_module('services.rollout', run_name='__main__')"


def wait_until(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """The first true value of `condition`."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)


class RolloutServer:
    """`python -m services.rollout` on a free port."""

    def __init__(
        self, folder: Path, model: Path, redis_url: str, run: str, code: str = "", **rollout: Any
    ) -> None:
        """
        Args:
            code: what the process runs first.
        """
        folder.mkdir(parents=True, exist_ok=True)
        table = {"port": 0, "dtype": "float32", "max_model_len": 512, "kv_cache_gib": 0.25,
                 "enforce_eager": True, "weights_dir": str(folder / "weights"), **rollout}  # fmt: skip
        lines = [f"{key} = {str(v).lower() if isinstance(v, bool) else repr(v)}" for key, v in table.items()]
        self.config = folder / "run.toml"
        self.config.write_text(
            f"[run]\nname = '{run}'\n[model]\npath = '{model}'\n[redis]\nurl = '{redis_url}'\n[rollout]\n"
            + "\n".join(lines)
        )
        self.log = folder / "rollout.log"
        self.weights_dir = Path(table["weights_dir"])
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", f"{code}{_RUN}", "--config", str(self.config)],
                env={**os.environ, "ROLLSTREAM_TOKEN": TOKEN},
                stdout=log,
                stderr=log,
            )

    def wait(self, streams: Streams) -> "RolloutServer":
        """Return when it has announced itself."""

        def announced() -> dict[str, Any] | None:
            assert self.process.poll() is None, self.log.read_text()[-5000:]
            found = [w for w in list_workers(streams, "rollout") if w["pid"] == self.process.pid]
            return found[0] if found else None

        facts = wait_until(announced, STARTUP_SECONDS)
        self.id, self.url = facts["id"], facts["url"]
        self.client = httpx.Client(
            base_url=self.url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60.0
        )
        return self

    def stop(self) -> None:
        """SIGTERM, then SIGKILL; its children go with it."""
        if hasattr(self, "client"):
            self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    @property
    def status(self) -> WeightStatus:
        return WeightStatus.model_validate_json(self.client.get("/v1/weights").content)

    @property
    def next_version(self) -> int:
        version = self.status.version
        return 0 if version is None else version + 1

    @property
    def epoch(self) -> int:
        return self.status.learner_epoch or 1

    def push_next(self, tensors: Mapping[str, torch.Tensor]) -> int:
        """A whole weight update to the next version, which is returned."""
        version = self.next_version
        self.push(tensors, version, self.epoch)
        return version

    def push(self, tensors: Mapping[str, torch.Tensor], version: int, epoch: int = 1, parts: int = 2) -> None:
        """A whole weight update."""
        manifest, payloads = make_update(tensors, version, epoch, parts)
        answer = self.client.post(f"/v1/weights/{version}", content=manifest.model_dump_json())
        assert answer.status_code == 201, answer.text
        for number, payload in enumerate(payloads):
            answer = self.client.put(f"/v1/weights/{version}/parts/{number}", content=payload)
            assert answer.status_code == 204, answer.text
        answer = self.client.post(f"/v1/weights/{version}/commit")
        assert answer.status_code == 200, answer.text
        assert answer.json()["version"] == version and answer.json()["digest"] == manifest.digest


def make_update(
    tensors: Mapping[str, torch.Tensor], version: int, epoch: int = 1, parts: int = 2
) -> tuple[WeightManifest, list[bytes]]:
    """The manifest and safetensors parts of a full update."""
    names = sorted(tensors)
    groups = [names[number::parts] for number in range(parts)]
    payloads = [save({name: tensors[name].contiguous() for name in group}) for group in groups]
    manifest = WeightManifest(
        version=version,
        learner_epoch=epoch,
        tensors=[
            TensorInfo(name=name, dtype=str(tensors[name].dtype).removeprefix("torch."),  # type: ignore[arg-type]
                       shape=list(tensors[name].shape), part=number)
            for number, group in enumerate(groups) for name in group
        ],
        parts=[PartInfo(nbytes=len(payload), sha256=sha256([payload])) for payload in payloads],
    )  # fmt: skip
    return manifest, payloads
