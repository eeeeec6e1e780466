"""The tables of the comparison: `python -m benchmarks.peers.table FOLDER` prints them again."""

import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path

from benchmarks.peers.record import Record

THRESHOLD = 0.80
TARGETS = (
    ("ours-bf16", "trl-bf16", 0.58),
    ("ours-bf16", "trl-fp32", 0.45),
    ("ours-fp32", "trl-fp32", 1.0),
)
"""Seconds per iteration, ours over TRL's, and at most what."""
TARGET_SECONDS = 17.0
TARGET_TRANSPORT = 0.1


def print_tables(folder: Path) -> None:
    """Everything that the records in a folder tell; also written to its summary.json."""
    records: dict[str, list[Record]] = defaultdict(list)
    for path in sorted(folder.glob("*-*.json")):
        if not path.name.startswith("bare-"):
            record = Record.read(path)
            records[record.contender].append(record)
    bare = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("bare-*.json"))]
    seconds = {name: statistics.median(r.seconds for r in runs) for name, runs in records.items()}
    print_phases(records, seconds)
    print_learning(records)
    summary: dict[str, object] = {"seconds_per_iteration": seconds, "ratios": {}}
    ratios = {}
    for ours, theirs, target in TARGETS:
        if ours in seconds and theirs in seconds:
            ratios[f"{ours} / {theirs}"] = seconds[ours] / seconds[theirs]
            print(f"{ours} / {theirs}: {seconds[ours] / seconds[theirs]:.2f} (target {target})")
    summary["ratios"] = ratios
    summary["transport"] = {}
    if bare:
        generate, reward = (statistics.median(run[name] for run in bare) for name in ("generate", "reward"))
        print(f"\nwithout services: generate {generate:.3f} s, reward {reward:.4f} s per 128 completions")
        transport = {
            name: statistics.median(transport_seconds(run, generate + reward) for run in runs)
            for name, runs in records.items()
            if name in ("ours-bf16", "ours-fp32")
        }
        for name, value in transport.items():
            print(
                f"{name}: streams, HTTP, weight updates, logs: {value:.3f} s per iteration "
                f"(target {TARGET_TRANSPORT})"
            )
        summary |= {"bare": bare, "transport": transport}
    (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")


def transport_seconds(record: Record, bare: float) -> float:
    """What an iteration takes beyond the learner's passes and generation and rewards without services."""
    phases = record.phases
    return record.seconds - phases["evaluate"] - phases["optimize"] - bare


def print_phases(records: dict[str, list[Record]], seconds: dict[str, float]) -> None:
    print("\nSeconds per iteration: medians over iterations, then over seeds.\n")
    print("| contender | total | by seed | phases |")
    print("|---|---|---|---|")
    for name, runs in records.items():
        by_seed = " / ".join(f"{run.seconds:.2f}" for run in runs)
        phases = {phase: statistics.median(run.phases[phase] for run in runs) for phase in runs[0].phases}
        shown = ", ".join(f"{phase} {value:.3f}" for phase, value in phases.items())
        print(f"| {name} | **{seconds[name]:.2f}** | {by_seed} | {shown} |")


def print_learning(records: dict[str, list[Record]]) -> None:
    print(f"\nTraining seconds to held-out greedy {THRESHOLD:.2f}; target for ours {TARGET_SECONDS:.0f}.\n")
    print("| contender | by seed | median | greedy, last | greedy, mean from iteration 8 | sampled, last |")
    print("|---|---|---|---|---|---|")
    for name, runs in records.items():
        reached = [run.seconds_to(THRESHOLD) for run in runs]
        shown = " / ".join("never" if value is None else f"{value:.1f}" for value in reached)
        median = statistics.median(float("inf") if value is None else value for value in reached)
        ends = [run.accuracy[-1] for run in runs if run.accuracy]
        late = [point.greedy for run in runs for point in run.accuracy if point.iteration >= 8]
        middle = "never" if median == float("inf") else f"{median:.1f}"
        greedy, sampled = (_mean([getattr(end, mode) for end in ends]) for mode in ("greedy", "sampled"))
        print(f"| {name} | {shown} | {middle} | {greedy} | {_mean(late)} | {sampled} |")
    print()


def _mean(values: list[float]) -> str:
    return f"{statistics.fmean(values):.3f}" if values else "-"


if __name__ == "__main__":
    print_tables(Path(sys.argv[1]))
