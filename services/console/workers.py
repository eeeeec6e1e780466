"""Every process of a run: what its heartbeat tells, and which entries it holds."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import redis
from rich.table import Table

from services.console.screen import clock
from shared.stream import GROUPS, STREAMS, Streams
from shared.workers import EXPIRY_SECONDS, list_workers

LEGEND = (
    "since: when it registered. beat: age of its heartbeat, which comes every 2 s; after 10 s it counts as "
    "dead, and others take over what it holds. version, digest: of the weights it serves. holds: entries it "
    "was given and has not finished. A server that is behind the learner gets no new prompts."
)

WORK = ("groups_delivered", "tokens_generated", "groups_dead")


@dataclass(frozen=True)
class Worker:
    """One process, alive by its heartbeat, or known only by the entries it still holds."""

    id: str
    facts: Mapping[str, Any]
    """What its last beat told; empty if it is not alive."""
    beat_seconds: float | None
    """Age of its last beat; None if it is not alive."""
    held: int
    """Entries it was given and has not finished."""


def read_workers(streams: Streams) -> list[Worker]:
    """All that are alive or hold something, sorted by id."""
    held = _held(streams)
    alive = {facts["id"]: facts for facts in list_workers(streams)}
    return [
        Worker(id, alive.get(id, {}), _beat(streams, id), held[id])
        for id in sorted(alive.keys() | held.keys())
    ]


def workers_table(workers: Sequence[Worker]) -> Table:
    """Narrow enough for 80 columns with the ids that workers have; only a longer id is folded."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("worker", overflow="fold")
    for name in ("state", "version", "digest", "since", "beat", "holds"):
        table.add_column(name, no_wrap=True)
    for worker in workers:
        facts, beat = worker.facts, worker.beat_seconds
        table.add_row(
            worker.id,
            "dead" if beat is None else str(facts.get("state", "alive")),
            str(facts.get("version", "-")),
            (facts.get("digest") or "-")[:8],
            clock(facts["since"]) if "since" in facts else "-",
            "-" if beat is None else f"{beat:.1f} s",
            str(worker.held),
        )
    return table


def work_table(workers: Sequence[Worker]) -> Table:
    """What each living one has done and where it listens, in words, which may take several lines."""
    table = Table.grid(padding=(0, 2))
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for worker in workers:
        words = [work_of(worker.facts), worker.facts.get("url", "")]
        if any(words):
            table.add_row(worker.id, ", ".join(filter(None, words)))
    return table


def work_of(facts: Mapping[str, Any]) -> str:
    """What a worker has done and holds, in words. The learner has a credit for each group in flight."""
    words = [f"{facts[name]} {name.replace('_', ' ')}" for name in WORK if name in facts]
    if "groups_in_flight" in facts:
        limit = f"of {facts['credits']} credits in use" if "credits" in facts else "groups in flight"
        words.insert(0, f"{facts['groups_in_flight']} {limit}")
    return ", ".join(words)


def _held(streams: Streams) -> Counter[str]:
    held: Counter[str] = Counter()
    for stream in STREAMS:
        try:
            consumers: Any = streams.client.xinfo_consumers(streams.key(stream), GROUPS[stream])
        except redis.ResponseError as error:
            if "no such key" in str(error) or "NOGROUP" in str(error):
                continue
            raise
        for consumer in consumers:
            if consumer["pending"]:
                held[consumer["name"].decode()] += consumer["pending"]
    return held


def _beat(streams: Streams, id: str) -> float | None:
    """Seconds since the last beat, from the time that its key has left; None if the key has expired."""
    left: Any = streams.client.pttl(streams.key(f"worker:{id}"))
    return EXPIRY_SECONDS - left / 1000 if left >= 0 else None
