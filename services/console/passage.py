"""The way of one group through the services, told from the readable fields that travel with it."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple


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
    if "issued_at" in facts:
        version = f" at version {facts['issued_version']}" if "issued_version" in facts else ""
        yield Moment(float(facts["issued_at"]), "learner", f"issued{version}")
    if "generated_at" in facts:
        worker = facts.get("worker", "?")
        yield from _work("rollout", worker, "generated", float(facts["generated_at"]), facts)
    if "scored_at" in facts:
        worker = facts.get("reward_worker", "?")
        yield from _work("reward", worker, "scored", float(facts["scored_at"]), facts)


def _work(service: str, worker: str, done: str, end: float, facts: Mapping[str, str]) -> Iterator[Moment]:
    seconds = facts.get(f"{service}_seconds")
    if seconds is not None:
        again = facts.get(f"{service}_deliveries", "1")
        other = f", after {int(again) - 1} others that did not finish it" if int(again) > 1 else ""
        yield Moment(end - float(seconds), service, f"taken by {worker}{other}")
    attempts = int(facts.get(f"{service}_attempts", "1"))
    tries = f" at attempt {attempts}" if attempts > 1 else ""
    took = f" in {float(seconds):.3f} s" if seconds is not None else ""
    yield Moment(end, service, f"{done} by {worker}{took}{tries}{_result(service, facts)}")


def _result(service: str, facts: Mapping[str, str]) -> str:
    if service == "reward":
        return f": mean reward {facts['reward_mean']}" if "reward_mean" in facts else ""
    if not {"tokens", "min_version", "max_version"} <= facts.keys():
        return ""
    low, high = facts["min_version"], facts["max_version"]
    versions = f"version {low}" if low == high else f"versions {low} to {high}"
    return f": {facts['tokens']} tokens under {versions}"
