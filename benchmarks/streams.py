"""`python -m benchmarks.streams`: what the streams cost beside redis-py that moves the same bytes.

Groups walk from prompt to acknowledgement through Rollstream's feed, readers, codec and scripts, and in turn
through pipelined XADD, XREADGROUP and XACK of redis-py. What counts is the ratio of medians.
"""

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from redis import Redis

from benchmarks.hops import SIZES, Ours, Raw, Size, entries_of
from benchmarks.reward_processes import redis as redis_server
from benchmarks.side_by_side import in_turn, print_rates, seconds_of
from shared.outage import insist
from shared.stream import Streams, connect


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory() as folder, redis_server(Path(folder)) as url:
        for name in options.sizes:
            compare(url, name, SIZES[name], options)


def compare(url: str, name: str, size: Size, options: argparse.Namespace) -> None:
    with connect(url) as client:
        insist(client.flushall, 30.0, lambda: None)  # it has only just been started
        walks = {together: _ours(client, size, options.groups, together) for together in options.together}
        first = Ours(Streams(client, "recorded"), size, options.groups, options.groups)
        raw = Raw(client, entries_of(first), "raw:")
        contenders: dict[str, Callable[[], float]] = {"redis-py": lambda: _raw_seconds(raw, options.batches)}
        for together, ours in walks.items():
            label = "one by one" if together == 1 else f"{together} together"
            contenders[f"ours, handed on {label}"] = partial(
                seconds_of, partial(walk, ours.batch, options.batches)
            )
        rates = in_turn(contenders, options.groups * options.batches, options.rounds)
    megabytes = raw.nbytes / options.groups / 1e6
    print(
        f"\n{name}: groups of {size.completions} completions of {size.completion_tokens[0]} to "
        f"{size.completion_tokens[1]} tokens, {megabytes * 1000:.1f} kB over the three hops; batches of "
        f"{options.groups} groups, {options.batches} a turn, {options.rounds} rounds\n"
    )
    print_rates(rates, "groups/s", "redis-py", "target 0.5")
    print()
    as_megabytes = {contender: [rate * megabytes for rate in taken] for contender, taken in rates.items()}
    print_rates(as_megabytes, "MB/s", "redis-py", "target 0.5")


def _ours(client: "Redis", size: Size, groups: int, together: int) -> Ours:
    return Ours(Streams(client, f"together-{together}"), size, groups, together)


def _raw_seconds(raw: Raw, batches: int) -> float:
    """Ours deletes what it acknowledges; here that is off the clock."""
    seconds = seconds_of(partial(walk, raw.batch, batches))
    raw.trim()
    return seconds


def walk(batch: Callable[[], object], count: int) -> None:
    for _ in range(count):
        batch()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams", description=__doc__)
    parser.add_argument(
        "--sizes", nargs="+", choices=SIZES, default=list(SIZES), help="of payloads (default: all)"
    )
    parser.add_argument("--groups", type=int, default=64, help="in a batch (default 64)")
    parser.add_argument("--batches", type=int, default=2, help="in a turn (default 2)")
    parser.add_argument(
        "--together",
        type=int,
        nargs="+",
        default=[1, 8, 64],
        help="groups handed on in one step (default 1 8 64)",
    )
    parser.add_argument("--rounds", type=int, default=60)
    return parser.parse_args()


if __name__ == "__main__":
    main()
