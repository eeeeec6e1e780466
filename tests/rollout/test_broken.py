"""A server whose model is of no use any more goes, and what it held with it."""

from pathlib import Path

from transformers import LlamaForCausalLM

from shared.stream import Streams
from tests.conftest import RedisServer
from tests.rollout.asking import Asker, make_prompt, some_tokens
from tests.rollout.server import RolloutServer, make_update, wait_until
from tests.rollout.tiny_model import tensors_of

FAIL_AT_VERSION_1 = """
import os
os.environ.update(VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="ERROR")
from vllm.v1.engine.async_llm import AsyncLLM
update = AsyncLLM.update_weight_version
async def fail(self, version):
    if version == "1":
        raise RuntimeError("a wire came loose")
    await update(self, version)
AsyncLLM.update_weight_version = fail
"""


def test_a_server_that_gets_stuck_in_an_update_ends_and_hands_its_prompts_back(
    redis_server: RedisServer, streams: Streams, tied_model: tuple[Path, LlamaForCausalLM], tmp_path: Path
) -> None:
    """Paused for ever, it would keep its prompts for as long as its heart beats."""
    asker, (folder, model) = Asker(streams), tied_model
    server = RolloutServer(tmp_path, folder, redis_server.url, streams.run, FAIL_AT_VERSION_1)
    try:
        server.wait(streams).push(tensors_of(model), 0)
        prompts = [make_prompt(some_tokens(5, i), n=4, max_tokens=400) for i in range(16)]
        asker.issue(prompts)
        wait_until(lambda: server.client.get("/v1/status").json()["groups_in_flight"] == 16)
        manifest, parts = make_update(tensors_of(model), 1)
        server.client.post("/v1/weights/1", content=manifest.model_dump_json())
        for number, part in enumerate(parts):
            server.client.put(f"/v1/weights/1/parts/{number}", content=part)
        answer = server.client.post("/v1/weights/1/commit")
        assert answer.status_code == 500 and "a wire came loose" in answer.text
        assert server.process.wait(timeout=15) == 2
        assert "a weight update stopped half way" in server.log.read_text()
        assert not streams.pending("prompts", server.id), "not left until its heartbeat expires"
        waiting = [entry.id for entry in streams.after("prompts", "0")]
        answered = [group.prompt.id for group in asker.answered(prompts)]
        assert waiting and sorted([*waiting, *answered]) == sorted(prompt.id for prompt in prompts)
    finally:
        server.stop()
