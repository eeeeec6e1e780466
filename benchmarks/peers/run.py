"""`python -m benchmarks.peers.run`: TRL's PPO and ours on the demo task, in turn on the same machine.

For each seed every contender trains once from the same checkpoint, in an order that turns round from seed to
seed. Each run writes a record under `--out`; records that are there are not made again, so a measurement that
was interrupted goes on where it was. Then the tables are printed, and written as `summary.json`.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.peers.table import print_tables
from benchmarks.pipeline import CACHE, ROOT, start_of

OURS: dict[str, list[str]] = {
    "ours-bf16": ["--precision", "bfloat16"],
    "ours-bf16-engine-too": ["--precision", "bfloat16", "--rollout-dtype", "bfloat16"],
    "ours-fp32": ["--precision", "float32"],
    "ours-bf16-overlap": ["--precision", "bfloat16", "--set", "learner.max_staleness=1"],
}
PEERS: dict[str, list[str]] = {
    "trl-bf16": ["--precision", "bfloat16"],
    "trl-fp32": ["--precision", "float32"],
}
DEFAULT = ("trl-bf16", "ours-bf16", "trl-fp32", "ours-fp32")


def main() -> None:
    options = _options()
    for number, seed in enumerate(options.seeds):
        start = start_of(seed, options.cache)
        order = options.contenders if number % 2 == 0 else options.contenders[::-1]
        for contender in order:
            measure(contender, seed, start, options)
        if not (options.out / f"bare-{seed}.json").exists():
            command = [
                "-m",
                "benchmarks.peers.bare",
                "--start",
                start,
                "--out",
                options.out / f"bare-{seed}.json",
            ]
            _call(sys.executable, [*command, *_pairs(options.rollout_set)])
    print_tables(options.out)


def measure(contender: str, seed: int, start: Path, options: argparse.Namespace) -> None:
    """One run, unless its record is there."""
    out = options.out / f"{contender}-{seed}.json"
    if out.exists():
        print(f"{out} is there", flush=True)
        return
    print(f"{contender}, seed {seed}", flush=True)
    common: list[object] = ["--contender", contender, "--seed", seed, "--start", start, "--out", out]
    common += ["--iterations", options.iterations, "--evaluate-every", options.evaluate_every]
    common += ["--heldout-rows", options.heldout_rows]
    if contender in OURS:
        overrides = [*options.set, *(f"rollout.{pair}" for pair in options.rollout_set)]
        _call(sys.executable, ["-m", "benchmarks.peers.ours", *OURS[contender], *common, *_pairs(overrides)])
    else:
        _call(options.peer_python, ["-m", "benchmarks.peers.trl_ppo", *PEERS[contender], *common])


def _pairs(overrides: list[str]) -> list[str]:
    return [word for pair in overrides for word in ("--set", pair)]


def _call(python: object, arguments: list[object]) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment |= {"PYTHONPATH": str(ROOT), "TRL_EXPERIMENTAL_SILENCE": "1"}
    subprocess.run([str(python), *map(str, arguments)], cwd=ROOT, env=environment, check=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.run", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "benchmarks" / "peers", help="of records")
    parser.add_argument("--contenders", nargs="+", choices=[*PEERS, *OURS], default=list(DEFAULT))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument(
        "--iterations",
        type=int,
        default=41,
        help="default 41, of which 20 of ours count: none that follows an evaluation",
    )
    parser.add_argument("--evaluate-every", type=int, default=2, help="iterations; 0 is never")
    parser.add_argument("--heldout-rows", type=int, default=256)
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder of the starts, made where missing")
    parser.add_argument(
        "--peer-python",
        type=Path,
        default=ROOT / "benchmarks" / "peers" / ".venv" / "bin" / "python",
        help="of the environment that setup.sh makes",
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override for ours")
    parser.add_argument(
        "--rollout-set", action="append", default=[], metavar="KEY=VALUE", help="of [rollout], for bare too"
    )
    options = parser.parse_args()
    options.out = options.out.resolve()
    if not options.peer_python.exists() and set(options.contenders) & set(PEERS):
        parser.error(f"{options.peer_python} is not there: run `sh benchmarks/peers/setup.sh` first")
    return options


if __name__ == "__main__":
    main()
