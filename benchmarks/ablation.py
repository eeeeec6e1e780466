"""`python -m benchmarks.ablation`: variants of the algorithm on the demo task, through the whole pipeline.

Every variant trains from the checkpoint of every seed. One row of JSON a run goes to `results.jsonl` under
`--out`, and runs that have their row are not made again, so an interrupted comparison goes on where it was.
"""

import argparse
import json
import statistics
import tomllib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import pipeline
from benchmarks.pipeline import CACHE, ROOT
from examples.arithmetic.problems import chat_of, first_problems

CONFIG = ROOT / "configs" / "demo.toml"
VARIANTS = Path(__file__).parent / "ablation.toml"
PTX_ROWS = 1024

Row = dict[str, Any]


def main() -> None:
    options = _options()
    results = options.out / "results.jsonl"
    variants = read_variants(options.variants)
    unknown = sorted(set(options.only or ()) - set(variants))
    if unknown:
        raise SystemExit(f"error: no variant {unknown[0]!r} in {options.variants}: {', '.join(variants)}")
    options.out.mkdir(parents=True, exist_ok=True)
    done = pipeline.rows(results) if results.exists() else []
    ptx = write_ptx(options.out / "ptx.jsonl")
    further = dict(pair.split("=", 1) for pair in options.set)
    for seed in options.seeds:
        for name in options.only or variants:
            overrides = {key: fill(value, ptx) for key, value in variants[name].items()} | further
            if any(row["variant"] == name and row["seed"] == seed for row in done):
                continue
            print(f"{name}, seed {seed}", flush=True)
            done.append(measure(name, seed, overrides, options))
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(done[-1]) + "\n")
    print(table(done, list(variants)))


def read_variants(path: Path) -> dict[str, dict[str, Any]]:
    """Overrides of each variant by dotted key, those for all included."""
    file = tomllib.loads(path.read_text(encoding="utf-8"))
    common = dict(pipeline.flat(file.get("all", {})))
    return {name: common | dict(pipeline.flat(own)) for name, own in file["variants"].items()}


def fill(value: Any, ptx: Path) -> Any:
    return str(ptx) if value == "{ptx}" else value


def write_ptx(path: Path) -> Path:
    """Worked solutions of training problems, as the ptx loss wants them."""
    with path.open("w", encoding="utf-8") as file:
        for problem in first_problems("train", PTX_ROWS):
            answer = {"role": "assistant", "content": problem.solution}
            file.write(json.dumps({"messages": [*chat_of(problem), answer]}) + "\n")
    return path.resolve()


def measure(name: str, seed: int, overrides: Mapping[str, Any], options: argparse.Namespace) -> Row:
    """Run one variant and say what it reached."""
    start = pipeline.start_of(seed, options.cache)
    ours = {"run.seed": seed, "learner.heldout": start / "heldout.jsonl", **overrides}
    folder = pipeline.run(CONFIG, start, options.out / "runs" / f"{name}-{seed}", ours)
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    steps = [row for row in pipeline.rows(folder / "metrics.jsonl") if "eps" in row]
    return {
        "variant": name,
        "seed": seed,
        "overrides": {key: str(value) for key, value in overrides.items()},
        "heldout": report["heldout"],
        "steps": report["steps"],
        "tokens_trained": report["tokens_trained"],
        "seconds": report["seconds"]["train"],
        "step_seconds": report["seconds"]["step_median"],
        "kl": steps[-1]["objective/kl"],
        "staleness_mean": statistics.fmean(row["staleness/mean"] for row in steps),
        "effective_sample_share": statistics.fmean(row["correction/effective_sample_share"] for row in steps),
        "steps_skipped": report["steps_skipped"],
        "reward": [row["reward/mean"] for row in steps],
    }


def table(rows: Sequence[Row], order: Sequence[str]) -> str:
    """A line for each variant that has rows: means over seeds with their standard deviations, and the mean
    difference from the first variant over the seeds that both have."""
    runs: dict[str, dict[int, Row]] = defaultdict(dict)
    for row in rows:
        runs[row["variant"]][row["seed"]] = row
    lines = [
        "| variant | seeds | greedy before | greedy | sampled | sampled, against the first | KL | s/step |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in [*order, *sorted(set(runs) - set(order))]:
        own = runs.get(name)
        if not own:
            continue
        base = runs.get(order[0], {})
        both = sorted(own.keys() & base.keys())
        differences = [_after(own[seed], "sampled") - _after(base[seed], "sampled") for seed in both]
        against = f"{statistics.fmean(differences):+.3f}" if both and name != order[0] else ""
        cells = [
            name,
            " ".join(map(str, sorted(own))),
            _spread([row["heldout"]["greedy"]["before"] for row in own.values()]),
            _spread([_after(row, "greedy") for row in own.values()]),
            _spread([_after(row, "sampled") for row in own.values()]),
            against,
            f"{statistics.fmean(row['kl'] for row in own.values()):.2f}",
            f"{statistics.fmean(row['step_seconds'] for row in own.values()):.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _after(row: Row, mode: str) -> float:
    return float(row["heldout"][mode]["after"])


def _spread(values: Sequence[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.3f}{deviation}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ablation", description=__doc__)
    parser.add_argument("--variants", type=Path, default=VARIANTS, help="TOML file of variants")
    parser.add_argument("--only", nargs="+", metavar="VARIANT", help="default: all of the file")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "benchmarks" / "ablation")
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder of the starts, made where missing")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override for all")
    return parser.parse_args()


if __name__ == "__main__":
    main()
