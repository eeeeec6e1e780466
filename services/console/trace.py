"""One prompt through every hop: where it is now, and what happened to it when."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis
from rich.table import Table
from rich.text import Text

from services.console.passage import Hop, Moment, in_order, passage
from services.console.screen import clock
from shared.dead_letters import DeadLetters
from shared.entry import Entry, seconds_of
from shared.stream import GROUPS, MOMENTS, STREAMS, StreamName, Streams
from shared.telemetry import whole_lines
from shared.workers import alive_ids

HELDOUT = "completions/heldout-*.jsonl"
_PAGE = 100
"""Entries read at once: each holds a whole group."""


def trace(streams: Streams, id: str, folder: Path) -> tuple[list[str], list[Moment]]:
    """Where a prompt is, and its moments in order of time.

    Looks at the streams in the direction in which entries move, so that one that moves meanwhile is seen.

    Args:
    folder: of the run; what was trained or evaluated is known only there.

    Raises:
    ValueError: nothing is known of the id.
    """
    places: list[str] = []
    moments = set(_events(streams, id))
    for name in STREAMS:
        for entry in _entries(streams, name, id):
            appended = entry.fields.get(MOMENTS[name], f"{seconds_of(entry.entry_id):.3f}")
            moments.update(passage({**entry.fields, MOMENTS[name]: appended}))
            places.append(_holder(streams, name, entry))
    for letter in _letters(streams, id):
        moments.update((*passage(letter.fields), _death(letter)))
        places.append("dead: `rollstream dead show` has it whole, `rollstream dead requeue` issues it again")
    if any(_entries(streams, "requeue", id)):
        places.append("requeued: the learner issues it again, or has and will note it in its next checkpoint")
    finished, way = on_disk(id, folder)
    places += finished
    moments.update(way)
    if not places and streams.client.sismember(streams.key("inflight"), id):
        places.append(
            "in flight for the learner and on no stream: it moved just now, or Redis lost it and the learner "
            "will issue it again"
        )
    if not places and not moments:
        raise ValueError(
            f"nothing is known of {id!r} in run {streams.run!r}: it is on no stream, is no dead letter, and "
            f"{absence(folder)}"
        )
    return places or ["no longer in flight"], in_order(moments)


def on_disk(id: str, folder: Path) -> tuple[list[str], list[Moment]]:
    """What the learner wrote of a group when it had trained on it, or evaluated it."""
    trained_in, way = trained(id, folder)
    evaluated_in, ends = evaluated(id, folder)
    return trained_in + evaluated_in, in_order(way + ends)


def absence(folder: Path) -> str:
    """Says of an id that `on_disk` knows nothing of it, and what is written there."""
    return (
        f"it is neither among the groups trained on in {folder / 'groups.jsonl'} nor in "
        f"{folder / HELDOUT}, which has held-out groups of the evaluations before the first and after "
        "the last step, and of none between"
    )


def evaluated(id: str, folder: Path) -> tuple[list[str], list[Moment]]:
    """After which step a held-out group was evaluated, with what rewards. Its way there is not written."""
    places: list[str] = []
    moments: list[Moment] = []
    for path in sorted(folder.glob(HELDOUT)):
        if rows := list(_rows(path, id)):
            step, which = int(path.stem.removeprefix("heldout-")), f"{rows[0]['dataset']} {rows[0]['mode']}"
            rewards = ", ".join(f"{row['reward']:g}" for row in rows)
            text = f"evaluated ({which}): rewards {rewards}"
            moments.append(Moment(rows[0]["at"], Hop.ENDED, "learner", text))
            places.append(f"evaluated after step {step} ({which}), its completions are in {path}")
    return places, moments


def trained(id: str, folder: Path) -> tuple[list[str], list[Moment]]:
    """What the learner noted of a group when it trained on it: the step, and the group's moments."""
    places: list[str] = []
    moments: set[Moment] = set()
    for row in _rows(folder / "groups.jsonl", id):
        moments.update(passage({name: str(value) for name, value in row.items()}))
        moments.add(Moment(row["at"], Hop.ENDED, "learner", f"trained on in step {row['step']}"))
        places.append(f"trained on in step {row['step']}")
    return places, in_order(moments)


def trace_table(moments: list[Moment]) -> Table:
    table = Table("time", "after", "where", "what", box=None, pad_edge=False)
    table.columns[1].justify = "right"
    for moment in moments:
        since = moment.at - moments[0].at
        table.add_row(clock(moment.at, digits=3), f"{since:.3f} s", moment.where, Text(moment.text))
    return table


def _entries(streams: Streams, name: str, id: str) -> Iterator[Entry]:
    cursor = "0"
    while page := streams.after(name, cursor, _PAGE):
        cursor = page[-1].entry_id
        yield from (entry for entry in page if entry.id == id)


def _letters(streams: Streams, id: str) -> list[Entry]:
    return [letter for letter in DeadLetters(streams).all() if letter.id == id]


def _holder(streams: Streams, name: StreamName, entry: Entry) -> str:
    """Who holds an entry of a data stream, for how long, at which delivery."""
    try:
        found: Any = streams.client.xpending_range(
            streams.key(name), GROUPS[name], entry.entry_id, entry.entry_id, 1
        )
    except redis.ResponseError as error:
        if "NOGROUP" not in str(error):
            raise
        found = []
    if not found:
        return f"on {name}, taken by nobody yet"
    (pending,) = found
    consumer, idle = pending["consumer"].decode(), pending["time_since_delivered"] / 1000
    place = f"on {name}, with {consumer} for {idle:.1f} s at delivery {pending['times_delivered']}"
    if consumer in alive_ids(streams):
        return place
    return f"{place}; it is not alive, so another will take over"


def _death(letter: Entry) -> Moment:
    fields = letter.fields
    text = f"given up by {fields.get('by')} at attempt {fields.get('attempts')}: {fields.get('cause')}"
    return Moment(seconds_of(letter.entry_id), Hop.ENDED, fields.get("stage", "?"), text)


def _events(streams: Streams, id: str) -> Iterator[Moment]:
    """Events about the id; of its deaths the letters tell more, while they are there."""
    known = {letter.fields.get("cause", "")[:300] for letter in _letters(streams, id)}
    cursor = "0"
    while page := streams.after("events", cursor):
        cursor = page[-1].entry_id
        for event in page:
            fields, said = event.fields, event.fields["text"].removeprefix(f"{id}: ")
            if said != fields["text"] and not (fields["kind"] == "dead" and said in known):
                text = f"{fields['kind']}: {said}"
                yield Moment(seconds_of(event.entry_id), Hop.REPORTED, fields["service"], text)


def _rows(path: Path, id: str) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    for line in whole_lines(path):
        if id in line and (row := json.loads(line)).get("id") == id:
            yield row
