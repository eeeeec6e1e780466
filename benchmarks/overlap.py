"""`python -m benchmarks.overlap`: how long a step takes beside generation and training, which should overlap.

The services themselves, with an engine and an update that sleep for as long as they are told
(benchmarks/sleepers.py), for several ratios of the two and values of `max_staleness`. `--real` runs the demo
instead, where both sides share the cores of this machine.
"""

import argparse
import contextlib
import json
import secrets
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from benchmarks.learner import make_model
from benchmarks.pipeline import ROOT, environment, free_port, rows, run, start_of
from benchmarks.reward_processes import redis
from examples.arithmetic.tokenizer import build_tokenizer
from shared.entry import Entry, seconds_of
from shared.outage import insist
from shared.stream import Streams, connect

RATIOS = ((1, 4), (1, 2), (1, 1), (2, 1), (4, 1))
GROUPS = 16
"""In a step, and what the engine answers at a time: a batch takes it as long as a prompt."""
TARGET = 1.15
_FILLING = 3
"""First steps, in which the pipeline fills and everything is loaded."""
_PATIENCE = 300.0


def main() -> None:
    options = _options()
    if options.real:
        print_real(options.staleness, options.steps or 12)
        return
    with tempfile.TemporaryDirectory() as name, redis(Path(name)) as url:
        folder = Path(name)
        _make_start(folder)
        print(HEAD + "".join(f" {s} |" for s in options.staleness))
        print("|---|---|---|---|" + "---|" * len(options.staleness))
        for ratio in options.ratios:
            generation, training = (part * options.larger / max(ratio) for part in ratio)
            found = {
                staleness: simulate(folder, url, generation, training, staleness, options.steps or 14)
                for staleness in options.staleness
            }
            print(row(generation, training, found), flush=True)


HEAD = "| generation | training | larger | sum | step, and its ratio to the larger, at `max_staleness` ="


def row(generation: float, training: float, steps: Mapping[int, float]) -> str:
    """Of the table: seconds of a step by `max_staleness`, in bold where it misses the target."""
    larger = max(generation, training)
    cells = [f"{seconds:.2f}" for seconds in (generation, training, larger, generation + training)]
    for staleness, seconds in steps.items():
        cell = f"{seconds:.2f}, {seconds / larger:.2f}"
        cells.append(f"**{cell}**" if staleness and seconds > TARGET * larger else cell)
    return f"| {' | '.join(cells)} |"


def simulate(folder: Path, url: str, generation: float, training: float, staleness: int, steps: int) -> float:
    """Median seconds of a step of a run of its own, from one `step` event of the learner to the next."""
    name = f"overlap-{secrets.token_hex(4)}"
    config = _write_config(folder, url, name, staleness, steps)
    given = ["--config", str(config)]
    sleepers = [sys.executable, "-m", "benchmarks.sleepers"]
    rollout = [*sleepers, "rollout", str(generation), str(GROUPS), *given]
    reward = [sys.executable, "-m", "services.reward", *given]
    learner = [*sleepers, "learner", str(training), *given]
    with children([rollout, reward, learner], folder / f"{name}.log") as (_, _, last):
        if last.wait(_PATIENCE):
            raise RuntimeError(f"the learner failed:\n{(folder / f'{name}.log').read_text('utf-8')[-4000:]}")
    with connect(url) as client:
        streams = Streams(client, name)
        found = steady_seconds(insist(lambda: streams.tail("events", 10_000), 30.0, lambda: None))
        streams.forget_run(streams.next_learner_epoch())
    return found


def steady_seconds(events: Sequence[Entry]) -> float:
    """Median seconds between steps, once the pipeline is full."""
    ends = [seconds_of(event.entry_id) for event in events if event.fields["kind"] == "step"]
    return statistics.median(after - before for before, after in list(pairwise(ends))[_FILLING - 1 :])


def print_real(staleness: Sequence[int], steps: int) -> None:
    """The demo's first steps, with no evaluation between them, on the cores of this machine."""
    start = start_of(0)
    print("| `max_staleness` | step | waiting for experience | the rest |")
    print("|---|---|---|---|")
    for number in staleness:
        overrides = {
            "learner.max_staleness": number,
            "learner.steps": steps,
            "learner.evaluate_every": steps,
            "learner.checkpoint_every": steps,
            "learner.heldout": [],
        }
        folder = ROOT / "runs" / "benchmarks" / f"overlap-{number}"
        run(ROOT / "configs" / "demo.toml", start, folder, overrides)
        step, waiting = real_seconds([each for each in rows(folder / "metrics.jsonl") if "time/step" in each])
        print(f"| {number} | {step:.2f} | {waiting:.2f} | {step - waiting:.2f} |", flush=True)


def real_seconds(steps: Sequence[Mapping[str, float]]) -> tuple[float, float]:
    """Median seconds of a step, and of its waiting for experience, once the pipeline is full."""
    full = steps[_FILLING:]
    return statistics.median(s["time/step"] for s in full), statistics.median(s["time/wait"] for s in full)


@contextlib.contextmanager
def children(commands: Sequence[Sequence[str]], log: Path) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Processes that are ended with the block, with one token between them and one log."""
    variables = environment() | {"OMP_NUM_THREADS": "1", "ROLLSTREAM_TOKEN": secrets.token_hex(16)}
    started: list[subprocess.Popen[bytes]] = []
    with log.open("ab") as output:
        try:
            for command in commands:
                started.append(
                    subprocess.Popen(command, cwd=ROOT, env=variables, stdout=output, stderr=output)
                )
            yield started
        finally:
            for child in started:
                child.terminate()
            for child in started:
                try:
                    child.wait(15)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()


def _make_start(folder: Path) -> None:
    """The smallest of models, with its tokenizer, and prompts."""
    tokenizer = build_tokenizer(256)
    tokenizer.save_pretrained(make_model(folder, hidden=32, layers=1, vocabulary=len(tokenizer)))
    prompts = [{"question": f"How much is {number} and {number}?", "answer": "0"} for number in range(500)]
    (folder / "prompts.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in prompts), encoding="utf-8"
    )


def _write_config(folder: Path, url: str, name: str, staleness: int, steps: int) -> Path:
    config = folder / f"{name}.toml"
    config.write_text(
        f"""
[run]
name = "{name}"
dir = "{folder / "runs"}"
[model]
path = "{folder / "model"}"
[redis]
url = "{url}"
[rollout]
port = 0
max_concurrent_groups = {3 * GROUPS}
[reward]
port = {free_port()}
scorers = {{ gsm8k_reward_fn = 1.0 }}
[learner]
prompts = "{folder / "prompts.jsonl"}"
steps = {steps}
groups_per_step = {GROUPS}
completions_per_prompt = 2
max_new_tokens = 16
max_staleness = {staleness}
advantage_estimator = "reinforce_plus_plus"
reference = "none"
kl_coef = 0.0
epochs = 1
minibatches = 1
trackers = []
checkpoint_every = {steps}
log_completions_every = {steps}
""",
        encoding="utf-8",
    )
    return config


def _ratio(text: str) -> tuple[int, int]:
    generation, training = map(int, text.split(":"))
    return generation, training


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overlap", description=__doc__)
    parser.add_argument("--ratios", nargs="+", type=_ratio, default=RATIOS, help="as 1:4, generation first")
    parser.add_argument("--staleness", nargs="+", type=int, default=[0, 1, 2], help="default: 0 1 2")
    parser.add_argument("--larger", type=float, default=1.0, help="seconds of the longer side (default 1)")
    parser.add_argument("--steps", type=int, help="of each run (default 14, with --real 12)")
    parser.add_argument("--real", action="store_true", help="the demo, on the cores of this machine")
    return parser.parse_args()


if __name__ == "__main__":
    main()
