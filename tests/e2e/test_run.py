"""Whole runs: `rollstream up` with real Redis, vLLM, reward service and learner, on a tiny model."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from examples.arithmetic.problems import first_problems, write_prompts
from examples.arithmetic.tokenizer import build_tokenizer
from examples.arithmetic.warm_start import build_model
from shared.stream import Streams, connect
from shared.workers import list_workers
from tests.conftest import free_port
from tests.metric_names import unexplained

TRL_NAMES = (
    *("eps", "episode", "lr", "loss/policy_avg", "loss/value_avg", "objective/entropy", "objective/kl"),
    *("objective/non_score_reward", "objective/rlhf_reward", "objective/scores", "policy/approxkl_avg"),
    *("policy/clipfrac_avg", "policy/entropy_avg", "val/clipfrac_avg", "val/num_eos_tokens", "val/ratio"),
    "val/ratio_var",
)

# Real questions have unicode, several paragraphs and quotes; these stand in for the data set's.
QUESTIONS = [
    "Café “Zoë” sells crêpes at €3.50 – how much do 4 cost?\n\nGive a number.",
    "Ein Käfer läuft 12 cm; wie weit läuft er in 7 Minuten? 🐞",
    "数学：七加五等于多少？",
    "What is 15% of $240? Note: it's not 15/240 … and mind the <b>tags</b>, </answer> and \\boxed{}!",
] * 10


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny untrained model, prompt files and a configuration."""
    folder = tmp_path_factory.mktemp("e2e")
    tokenizer = build_tokenizer(512)
    build_model(tokenizer, seed=0).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    write_prompts(folder / "train.jsonl", first_problems("train", 64))
    write_prompts(folder / "heldout.jsonl", first_problems("heldout", 16))
    rows = [
        {"question": question, "answer": f"…\n#### {number}"} for number, question in enumerate(QUESTIONS)
    ]
    (folder / "text.jsonl").write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows))
    (folder / "run.toml").write_text(
        """
        [run]
        name = "sync"
        [model]
        path = "model"
        [rollout]
        dtype = "float32"
        enforce_eager = true
        max_model_len = 256
        kv_cache_gib = 0.25
        [learner]
        prompts = "train.jsonl"
        max_new_tokens = 24
        steps = 2
        groups_per_step = 4
        completions_per_prompt = 2
        minibatches = 2
        policy_lr = 1e-3
        entropy_coef = 0.01  # an untrained model earns no reward, and would learn nothing
        checkpoint_every = 1
        rollout_timeout = 120.0
        """
    )
    return folder


@pytest.fixture
def ports(redis_server: Any) -> list[str]:
    return [
        f"--redis.url={redis_server.url}",
        f"--rollout.port={free_port()}",
        f"--reward.port={free_port()}",
    ]


class Run:
    """`rollstream up` as a child process that is gone, with all its children, when the test is over."""

    def __init__(self, folder: Path, *overrides: str) -> None:
        self.log = (folder / "up.log").open("w+")
        command = [sys.executable, "-m", "services.console", "up", "--config", "run.toml", *overrides]
        root = str(Path(__file__).parents[2])
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | {"PYTHONPATH": root},
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )

    def wait(self, seconds: float = 240) -> str:
        """The output of a run that ended well."""
        status = self.process.wait(seconds)
        assert status == 0, self.output()
        return self.output()

    def output(self) -> str:
        self.log.seek(0)
        return self.log.read()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(60)
        self.log.close()


@pytest.fixture
def start() -> Iterator[Any]:
    runs: list[Run] = []

    def begin(*arguments: Any) -> Run:
        runs.append(Run(*arguments))
        return runs[-1]

    yield begin
    for run in runs:
        run.stop()


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_synchronous_run_trains_reports_and_resumes(workspace: Path, ports: list[str], start: Any) -> None:
    heldout = "--learner.heldout=heldout.jsonl"
    start(workspace, *ports, heldout).wait()
    run = workspace / "runs" / "sync"

    report = json.loads((run / "report.json").read_text())
    assert (report["steps"], report["groups_issued"], report["groups_trained"]) == (2, 8, 8)
    assert report["staleness_max"] == report["groups_dead"] == report["duplicates_dropped"] == 0
    assert report["steps_skipped"] == 0
    assert report["heldout"]["greedy"].keys() == report["heldout"]["sampled"].keys() == {"before", "after"}
    assert report["logprob_gap"]["mean"] < 1e-4 and report["logprob_gap"]["max"] < 1e-3
    assert abs(report["ratio_first"]["min"] - 1) < 1e-3 and abs(report["ratio_first"]["max"] - 1) < 1e-3
    steps = [row for row in rows_of(run / "metrics.jsonl") if "eps" in row]
    assert len(steps) == 2 and all(name in row for row in steps for name in TRL_NAMES)
    assert not unexplained(set().union(*rows_of(run / "metrics.jsonl")))
    assert list((run / "tensorboard").glob("events*"))
    (completion, *_) = rows_of(run / "completions" / "step-000001.jsonl")
    assert {"prompt", "completion", "ground_truth", "reward", "components"} <= completion.keys()

    base = AutoModelForCausalLM.from_pretrained(workspace / "model")
    trained = AutoModelForCausalLM.from_pretrained(run / "checkpoints" / "step-000002" / "policy")
    moved = [not torch.equal(a, b) for a, b in zip(base.parameters(), trained.parameters(), strict=True)]
    assert any(moved), "two steps of PPO left every weight as it was"
    assert AutoTokenizer.from_pretrained(run / "checkpoints" / "step-000002" / "policy").chat_template

    refused = start(workspace, *ports, heldout)
    assert refused.process.wait(120) != 0
    assert "--resume" in refused.output() and "Traceback" not in refused.output()

    start(workspace, *ports, heldout, "--learner.resume=true", "--learner.steps=3").wait()
    report = json.loads((run / "report.json").read_text())
    assert (report["steps"], report["groups_issued"], report["groups_trained"]) == (3, 12, 12)
    assert [row["step"] for row in rows_of(run / "metrics.jsonl") if "eps" in row] == [1, 2, 3]


def wait_for_event(streams: Streams, kind: str, run: Run) -> None:
    deadline = time.monotonic() + 180
    while not any(entry.fields["kind"] == kind for entry in streams.tail("events", 1000)):
        assert run.process.poll() is None and time.monotonic() < deadline, run.output()
        time.sleep(0.1)


def test_an_overlapped_run_of_two_ranks_survives_the_death_of_its_rollout_server(
    workspace: Path, ports: list[str], start: Any, redis_server: Any
) -> None:
    run = start(
        workspace, *ports, "--run.name=overlap", "--learner.prompts=text.jsonl", "--learner.max_staleness=2",
        "--learner.ranks=2", "--learner.steps=8",
    )  # fmt: skip
    with connect(redis_server.url) as client:
        streams = Streams(client, "overlap")
        wait_for_event(streams, "step", run)
        (server,) = list_workers(streams, "rollout")
        os.kill(server["pid"], signal.SIGKILL)
        run.wait()
        assert streams.in_flight() == set()
        assert [
            client.xlen(streams.key(name)) for name in ("prompts", "rollouts", "experiences", "dead")
        ] == [0] * 4
    report = json.loads((workspace / "runs" / "overlap" / "report.json").read_text())
    assert report["groups_issued"] == report["groups_trained"] == 32
    assert report["groups_dead"] == 0 and report["staleness_max"] <= 2
    assert report["logprob_gap"]["max"] < 2, "stale data differ from the policy, but not wildly"


def test_a_killed_learner_resumes_from_its_checkpoint_and_trains_each_group_once(
    workspace: Path, ports: list[str], start: Any, redis_server: Any
) -> None:
    arguments = ("--run.name=killed", "--learner.steps=6", "--learner.checkpoint_every=2",
                 "--learner.max_staleness=1", "--rollout.max_concurrent_groups=4")  # fmt: skip
    run = start(workspace, *ports, *arguments)
    with connect(redis_server.url) as client:
        streams = Streams(client, "killed")
        steps = lambda: [e for e in streams.tail("events", 1000) if e.fields["kind"] == "step"]  # noqa: E731
        wait_for_event(streams, "checkpoint", run)
        (learner,) = list_workers(streams, "learner")
        os.kill(learner["pid"], signal.SIGKILL)
        assert run.process.wait(120) != 0 and len(steps()) < 6
        start(workspace, *ports, *arguments, "--resume").wait()
        assert streams.in_flight() == set()
    folder = workspace / "runs" / "killed"
    report = json.loads((folder / "report.json").read_text())
    assert report["steps"] == 6 and report["groups_issued"] == report["groups_trained"] == 24
    assert [row["step"] for row in rows_of(folder / "metrics.jsonl") if "eps" in row] == [1, 2, 3, 4, 5, 6]


def test_a_checkpoint_starts_a_new_run_in_the_engine(workspace: Path, ports: list[str], start: Any) -> None:
    newest = sorted((workspace / "runs" / "sync" / "checkpoints").glob("step-*"))[-1] / "policy"
    start(workspace, *ports, "--run.name=again", f"--model.path={newest}", "--learner.steps=1").wait()
    report = json.loads((workspace / "runs" / "again" / "report.json").read_text())
    assert report["groups_trained"] == 4 and report["logprob_gap"]["max"] < 1e-3


def test_a_stopped_run_leaves_no_process_behind(
    workspace: Path, ports: list[str], start: Any, redis_server: Any
) -> None:
    run = start(workspace, *ports, "--run.name=stopped", "--learner.steps=1000")
    with connect(redis_server.url) as client:
        streams = Streams(client, "stopped")
        wait_for_event(streams, "step", run)
        pids = [worker["pid"] for worker in list_workers(streams)]
        assert len(pids) == 3
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(90) != 0
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
