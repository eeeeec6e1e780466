"""The way of one group through the services, told from the readable fields that travel with it."""

from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple

from shared.stream import MOMENTS

_FAR_FUTURE = 1e11
"""Unix seconds that no clock shows."""


class Hop(IntEnum):
    """How far a group had come."""

    ISSUED = 0
    TO_ROLLOUT = 1
    GENERATED = 2
    TO_REWARD = 3
    SCORED = 4
    ENDED = 5
    """Trained on, evaluated or given up."""
    REPORTED = 6
    """As an event told it afterwards."""


class Moment(NamedTuple):
    """Something that happened to a group."""

    at: float
    """Unix seconds; by the clock of Redis where an entry tells it, else by a service's own."""
    hop: Hop
    where: str
    text: str


def in_order(moments: Iterable[Moment]) -> list[Moment]:
    """By time, and within a millisecond, which is all that the times tell, by hop."""
    return sorted(moments, key=lambda moment: (round(moment.at, 3), *moment[1:]))


def passage(facts: Mapping[str, str]) -> Iterator[Moment]:
    """What the fields of an entry, or of a row of `groups.jsonl`, tell: issue, generation and scoring.

    Beginnings are computed: the end, less the seconds that the worker says it held the group. The end is cut
    to a millisecond, so the difference may lie before the hop that the group came from; that one bounds it.
    """
    issued, generated, scored = (_number(facts, name) for name in MOMENTS.values())
    if issued is not None:
        version = f" at version {facts['issued_version']}" if "issued_version" in facts else ""
        yield Moment(issued, Hop.ISSUED, "learner", f"issued{version}")
    if generated is not None:
        yield from _work(Hop.GENERATED, facts.get("worker", "?"), issued or 0.0, generated, facts)
    if scored is not None:
        yield from _work(Hop.SCORED, facts.get("reward_worker", "?"), generated or 0.0, scored, facts)


def _work(hop: Hop, worker: str, waiting: float, end: float, facts: Mapping[str, str]) -> Iterator[Moment]:
    """The worker takes the group, which waits for it since `waiting`, and brings it to `hop`."""
    service, taken = ("rollout", Hop.TO_ROLLOUT) if hop is Hop.GENERATED else ("reward", Hop.TO_REWARD)
    seconds, took = _number(facts, f"{service}_seconds"), ""
    if seconds is not None:
        others = int(_number(facts, f"{service}_deliveries") or 1) - 1
        after = f", after {others} others that did not finish it" if others > 0 else ""
        yield Moment(max(end - seconds, waiting), taken, service, f"taken by {worker}{after}")
        took = f" in {seconds:.3f} s"
    attempts = int(_number(facts, f"{service}_attempts") or 1)
    tries = f" at attempt {attempts}" if attempts > 1 else ""
    yield Moment(end, hop, service, f"{hop.name.lower()} by {worker}{took}{tries}{_result(service, facts)}")


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
