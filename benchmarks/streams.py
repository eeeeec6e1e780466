"""`python -m benchmarks.streams`: what the streams cost beside redis-py that moves the same bytes.

Groups walk from prompt to acknowledgement through Rollstream's feed, readers, codec and scripts, and in turn
through pipelined XADD, XREADGROUP and XACK of redis-py. What counts is the ratio of medians.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.hops import SIZES, Ours, Raw, Size, entries_of
from benchmarks.reward_processes import redis
from benchmarks.side_by_side import in_turn, print_rates, seconds_of
from shared.stream import Streams, connect


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory() as folder, redis(Path(folder)) as url:
        for name in options.sizes:
            compare(url, name, SIZES[name], options)


def compare(url: str, name: str, size: Size, options: argparse.Namespace) -> None:
    with connect(url) as ours_client, connect(url) as raw_client:
        raw_client.flushall()
        streams = Streams(ours_client, f"benchmark-{name}")
        ours = Ours(streams, size, options.groups)
        raw = Raw(raw_client, entries_of(streams, ours))
        groups = options.groups * options.batches

        def trimmed() -> float:
            seconds = seconds_of(lambda: walk(raw.batch, options.batches))
            raw.trim()
            return seconds

        contenders = {
            "ours": lambda: seconds_of(lambda: walk(ours.batch, options.batches)),
            "redis-py": trimmed,
        }
        rates = in_turn(contenders, groups, options.rounds)
        megabytes = raw.nbytes / options.groups / 1e6
        print(
            f"\n{name}: groups of {size.completions} completions of {size.completion_tokens[0]} to "
            f"{size.completion_tokens[1]} tokens, {megabytes * 1000:.1f} kB over the three hops; batches of "
            f"{options.groups} groups, {options.batches} a round, {options.rounds} rounds\n"
        )
        print_rates(rates, "groups/s", "redis-py", "target 0.5")
        print()
        print_rates(
            {n: [r * megabytes for r in rate] for n, rate in rates.items()}, "MB/s", "redis-py", "target 0.5"
        )


def walk(batch: Callable[[], object], count: int) -> None:
    for _ in range(count):
        batch()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams", description=__doc__)
    parser.add_argument(
        "--sizes", nargs="+", choices=SIZES, default=list(SIZES), help="of payloads (default: all)"
    )
    parser.add_argument("--groups", type=int, default=64, help="in a batch (default 64)")
    parser.add_argument("--batches", type=int, default=10, help="in a round (default 10)")
    parser.add_argument("--rounds", type=int, default=15)
    return parser.parse_args()


if __name__ == "__main__":
    main()
