"""Our side: one run of the whole pipeline, read into a record.

An evaluation comes after the next iteration's prompts were issued, so these are completed while it runs: the
iteration after an evaluation is marked as having hidden work.
"""

import argparse
import resource
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import pipeline
from benchmarks.peers.record import Accuracy, Iteration, Record

CONFIG = Path(__file__).parent / "ours.toml"
PHASES = ("wait", "evaluate", "optimize", "publish")


def main() -> None:
    options = _options()
    overrides: dict[str, Any] = {
        "run.seed": options.seed,
        "learner.steps": options.iterations,
        "learner.precision": options.precision,
        "rollout.dtype": options.rollout_dtype,
        **dict(pair.split("=", 1) for pair in options.set),
    }
    if options.evaluate_every:
        overrides["learner.heldout"] = _first_rows(options)
        overrides["learner.evaluate_every"] = options.evaluate_every
    folder = pipeline.run(CONFIG, options.start, options.out.with_suffix(""), overrides)
    record = Record(options.contender, options.seed, overrides | {"heldout_rows": options.heldout_rows})
    read(pipeline.rows(folder / "metrics.jsonl"), record)
    record.settings = {key: str(value) for key, value in record.settings.items()}
    record.settings["largest_process_peak_rss_mib"] = (
        resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
    )
    record.write(options.out)
    shutil.rmtree(folder / "checkpoints")


def read(rows: Sequence[Mapping[str, Any]], record: Record) -> None:
    """Iterations and accuracies out of a run's metrics.

    Each row says when it was written: a step's when the step had been published, an evaluation's when it was
    done. So the seconds of an iteration are those since the row before, whatever happened in them.
    """
    before: Mapping[str, Any] | None = None
    for row in rows:
        if "eps" not in row:
            record.accuracy.append(
                Accuracy(
                    row["step"], row["eval/heldout/greedy/accuracy"], row["eval/heldout/sampled/accuracy"]
                )
            )
        else:
            phases = {name: row[f"time/{name}"] for name in PHASES}
            seconds = row["at"] - before["at"] if before else row["time/step"]
            phases["other"] = seconds - sum(phases.values())
            evaluated = before is not None and "eps" not in before and before["step"] > 0
            record.iterations.append(Iteration(seconds, phases, hidden_work=evaluated))
        before = row


def _first_rows(options: argparse.Namespace) -> Path:
    """As many held-out rows as the peer is asked, so that first and last evaluation are of the same ones."""
    path: Path = options.out.with_suffix(".heldout.jsonl").resolve()
    lines = (options.start / "heldout.jsonl").read_text(encoding="utf-8").splitlines()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines[: options.heldout_rows]) + "\n", encoding="utf-8")
    return path


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.ours", description=__doc__)
    parser.add_argument("--start", type=Path, required=True, help="folder with model/ and the prompt files")
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the record")
    parser.add_argument("--contender", default="ours")
    parser.add_argument(
        "--precision", choices=("float32", "bfloat16"), default="bfloat16", help="the learner's"
    )
    parser.add_argument("--rollout-dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--evaluate-every", type=int, default=2, help="iterations; 0 is never")
    parser.add_argument("--heldout-rows", type=int, default=256)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="further overrides")
    return parser.parse_args()


if __name__ == "__main__":
    main()
