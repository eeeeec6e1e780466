"""A real vLLM server with a reward model: its scores through our contracts are those of our own scorer."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from shared.scoring import ScoreItem
from tests.conftest import free_port
from tests.reward.external.servers import scorer_of
from tests.reward.neural.models import MIXED, llama, scorer, write_model

START_SECONDS = 180


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # vLLM's attention on CPU has no kernel for heads of fewer than 32.
    config = llama(hidden_size=64, num_attention_heads=2, num_key_value_heads=2)
    return write_model(tmp_path_factory.mktemp("rm"), "sequence_classification", config)


@pytest.fixture(scope="module")
def url(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("vllm") / "log"
    port = free_port()
    options = ["--runner", "pooling", "--dtype", "float32", "--enforce-eager", "--served-model-name", "rm"]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), *options]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with log.open("wb") as output:
        server = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    try:
        address = f"http://127.0.0.1:{port}"
        until = time.monotonic() + START_SECONDS
        while not answers(address):
            assert server.poll() is None and time.monotonic() < until, log.read_text()[-3000:]
            time.sleep(0.2)
        yield address
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}/health").status_code == 200
    except httpx.HTTPError:
        return False


def test_vllms_scores_are_those_of_our_own_scorer(url: str, model: Path) -> None:
    messages = [{"role": "user", "content": "U"}]
    talks = [ScoreItem(response=text, metadata={"messages": messages}) for text in ("R", "longer " * 9)]
    for contract in ("vllm_classify", "vllm_pooling"):
        path = contract.removeprefix("vllm_")
        for items, ours, theirs in ((MIXED, "text", "text"), (talks, "messages", "messages")):
            rm = scorer(model, prompt_as=ours)
            try:
                expected = rm.score(items, 60.0)
            finally:
                rm.close()
            with scorer_of(f"{url}/{path}", contract=contract, model="rm", send=theirs) as outside:
                assert outside.score(items, 60.0) == pytest.approx(expected, abs=1e-4)
