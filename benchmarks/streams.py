"""`python -m benchmarks.streams`: what the streams cost beside redis-py that moves the same bytes.

Groups walk from prompt to acknowledgement through Rollstream's feed, readers, codec and scripts, and in turn
through pipelined XADD, XREADGROUP and XACK of redis-py. What counts is the ratio of medians.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
        turns = {"redis-py": Turns(client, raw.batch, options.batches, raw.trim)}
        for together, ours in walks.items():
            label = "one by one" if together == 1 else f"{together} together"
            turns[f"ours, handed on {label}"] = Turns(client, ours.batch, options.batches)
        groups = options.groups * options.batches
        rates = in_turn({label: each.take for label, each in turns.items()}, groups, options.rounds)
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
    print()
    by_processor = {
        contender: [groups / seconds for seconds in each.processor_seconds[1:]]  # the first warms up
        for contender, each in turns.items()
    }
    print_rates(by_processor, "groups per second of processor", "redis-py", "target 0.5")


class Turns:
    """A contender, timed turn by turn."""

    def __init__(
        self,
        client: Redis,
        batch: Callable[[], object],
        batches: int,
        tidy: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            batches: in a turn.
            tidy: what is done after each turn, off the clock.
        """
        self.processor_seconds: list[float] = []
        """Of this process and of Redis together, in each turn: other work changes them less."""
        self._client = client
        self._batch = batch
        self._batches = batches
        self._tidy = tidy

    def take(self) -> float:
        """The seconds of a turn."""
        before = self._processor()
        seconds = seconds_of(lambda: walk(self._batch, self._batches))
        self.processor_seconds.append(self._processor() - before)
        self._tidy()
        return seconds

    def _processor(self) -> float:
        used: Any = self._client.info("cpu")
        return time.process_time() + float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


def _ours(client: Redis, size: Size, groups: int, together: int) -> Ours:
    return Ours(Streams(client, f"together-{together}"), size, groups, together)


def walk(batch: Callable[[], object], count: int) -> None:
    for _ in range(count):
        batch()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams", description=__doc__)
    parser.add_argument(
        "--sizes", nargs="+", choices=SIZES, default=list(SIZES), help="of payloads (default: all)"
    )
    parser.add_argument("--groups", type=int, default=256, help="in a batch (default 256)")
    parser.add_argument("--batches", type=int, default=1, help="in a turn (default 1)")
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
