"""The learner's whole loop over a real Redis; threads play the rollout and the reward service."""

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from examples.arithmetic.tokenizer import build_tokenizer
from services.learner.config.learner import LearnerSettings
from services.learner.train import train
from shared.entry import Entry
from shared.experience import Completion, Float32Array, Group, Int32Array, Prompt, VersionSpan
from shared.stream import Streams
from shared.vocabulary import vocabulary_digest
from tests.conftest import RedisServer
from tests.learner.both_hops import both_hops
from tests.learner.samples import ALONE, save_tiny_llama
from tests.learner.weight_server import Server, serving
from tests.metric_names import unexplained

Run = Callable[..., list[dict[str, Any]]]
"""Train with these options of `[learner]`; returns the rows of `metrics.jsonl`."""


@contextmanager
def answering(streams: Streams) -> Iterator[Server]:
    """Take every prompt, and give scored completions of chance by the policy that was published last.

    Yields the server that takes the policy.
    """
    chance, server = random.Random(0), Server(streams, "r1")

    def answer(entry: Entry, prompt: Prompt) -> Group:
        assert server.version is not None and server.digest is not None
        completions = []
        for _ in range(prompt.n):
            ids = Int32Array(chance.choices(range(20), k=chance.randint(1, 9)))
            completions.append(
                Completion(
                    token_ids=ids,
                    logprobs=Float32Array([-3.0] * len(ids)),
                    text="",
                    finish_reason="stop",
                    version_spans=[VersionSpan(server.version, len(ids))],
                    reward=chance.random(),
                    components={"brevity": 1.0},
                )
            )
        return Group(prompt=prompt, completions=completions, worker="r1", weights_digest=server.digest)

    with both_hops(streams, answer), serving(server):
        yield server


@pytest.fixture
def run(
    tmp_path: Path, streams: Streams, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Run]:
    monkeypatch.setenv("ROLLSTREAM_TOKEN", "the-token-of-this-run")
    tokenizer = build_tokenizer(64)
    tokenizer.save_pretrained(save_tiny_llama(tmp_path / "model", vocabulary=len(tokenizer)))
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"{number}+1="}) + "\n" for number in range(4)))
    name = streams.run

    def begin(**options: Any) -> list[dict[str, Any]]:
        table = {
            "prompts": prompts,
            "heldout": prompts,
            "max_new_tokens": 9,
            "groups_per_step": 2,
            "completions_per_prompt": 2,
            "minibatches": 2,
            "policy_lr": 1e-2,
            "checkpoint_every": 1,
            "trackers": (),
            "rollout_timeout": 20.0,
            **options,
        }
        train(
            LearnerSettings.model_validate(
                {
                    "run": {"name": name, "dir": tmp_path},
                    "redis": {"url": redis_server.url},
                    "model": {"path": tmp_path / "model"},
                    "learner": table,
                }
            ),
            ALONE,
        )
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    with answering(streams) as server:
        yield begin
        tokens = vocabulary_digest(tmp_path / "model")
        assert tokens and server.manifest.tokenizer == tokens


def test_a_run_tells_what_it_did_step_by_step(run: Run, tmp_path: Path, streams: Streams) -> None:
    rows = run(steps=3, kl_coef=0.3, reference_refresh_every=1, peak_tflops=1.0, evaluate_samples=2)
    steps = [row for row in rows if "eps" in row]
    assert [row["step"] for row in steps] == [1, 2, 3]
    assert not unexplained(set().union(*rows))
    assert all(0 < row["mfu"] < 1 for row in steps)
    assert all(abs(row["objective/kl"]) < 1e-5 for row in steps), "the reference is the policy of before"
    written = sorted(path.name for path in (tmp_path / streams.run / "completions").iterdir())
    assert [name for name in written if name.startswith("step")] == ["step-000001.jsonl", "step-000003.jsonl"]

    rows = run(steps=4, resume=True, kl_coef=0.1)
    coefficients = {row["step"]: row["objective/kl_coef"] for row in rows if "eps" in row}
    assert coefficients == {1: 0.3, 2: 0.3, 3: 0.3, 4: 0.1}
    alarms = [e.fields["text"] for e in streams.tail("events", 1000) if e.fields["kind"] == "logprob_gap"]
    assert [text.partition(":")[0] for text in alarms] == ["step 1", "step 4"], "their logprobs are made up"
