"""`python -m examples.arithmetic --out DIR`: prompt files and a mediocre tiny model to start PPO from."""

import argparse
import os
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.arithmetic", description=__doc__)
    parser.add_argument(
        "--out", type=Path, required=True, help="directory for model/, train.jsonl and heldout.jsonl"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the model and its training (default 0)")
    options = parser.parse_args()

    # Threads wait for one another awake, but not for long, in case something else wants the cores.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    # Imported late: `--help` need not wait for torch.
    import torch

    from examples.arithmetic.warm_start import ensure

    # More threads than this only wait for each other on so small a model.
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    print(ensure(options.out, options.seed, echo=lambda line: print(line, flush=True)))


if __name__ == "__main__":
    main()
