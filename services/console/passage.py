"""The way of one group through the services, told from the readable fields that travel with it."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from shared.stream import MOMENTS

_FAR_FUTURE = 1e11
"""Unix seconds that no clock shows."""


class Moment(NamedTuple):
    """Something that happened to a group."""

    at: float
    """Unix seconds; by the clock of Redis where an entry tells it, else by a service's own."""
    where: str
    text: str


def passage(facts: Mapping[str, str]) -> Iterator[Moment]:
    """What the fields of an entry, or of a row of `groups.jsonl`, tell: issue, generation and scoring.

    Beginnings are computed: the end, less the seconds that the worker says it held the group.
    """
    issued, generated, scored = (_number(facts, name) for name in MOMENTS.values())
    if issued is not None:
        version = f" at version {facts['issued_version']}" if "issued_version" in facts else ""
        yield Moment(issued, "learner", f"issued{version}")
    if generated is not None:
        yield from _work("rollout", facts.get("worker", "?"), "generated", generated, facts)
    if scored is not None:
        yield from _work("reward", facts.get("reward_worker", "?"), "scored", scored, facts)


def _work(service: str, worker: str, done: str, end: float, facts: Mapping[str, str]) -> Iterator[Moment]:
    seconds, took = _number(facts, f"{service}_seconds"), ""
    if seconds is not None:
        others = int(_number(facts, f"{service}_deliveries") or 1) - 1
        after = f", after {others} others that did not finish it" if others > 0 else ""
        yield Moment(end - seconds, service, f"taken by {worker}{after}")
        took = f" in {seconds:.3f} s"
    attempts = int(_number(facts, f"{service}_attempts") or 1)
    tries = f" at attempt {attempts}" if attempts > 1 else ""
    yield Moment(end, service, f"{done} by {worker}{took}{tries}{_result(service, facts)}")


def _number(facts: Mapping[str, str], name: str) -> float | None:
    """None also where it makes no sense: a dead letter may be of an entry that somebody forged."""
    try:
        number = float(facts[name])
    except (KeyError, ValueError):
        return None
    return number if 0 <= number < _FAR_FUTURE else None


def _result(service: str, facts: Mapping[str, str]) -> str:
    if service == "reward":
        return f": mean reward {facts['reward_mean']}" if "reward_mean" in facts else ""
    if not {"tokens", "min_version", "max_version"} <= facts.keys():
        return ""
    low, high = facts["min_version"], facts["max_version"]
    versions = f"version {low}" if low == high else f"versions {low} to {high}"
    return f": {facts['tokens']} tokens under {versions}"
