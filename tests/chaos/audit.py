"""The promises, checked from outside: streams, dead letters, the learner's committed manifest, its records.

Every id that was issued is in exactly one place: trained once, dead-lettered with a cause, or in flight.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from services.learner import checkpoint
from shared.dead_letters import DeadLetters
from shared.stream import STREAMS
from tests.chaos.history import issued_prompts
from tests.chaos.pipeline import RUN, Pipeline


def trained_ids(run: Path) -> list[str]:
    """Ids of the groups of each step, in order. The record of a step that is done again is replaced."""
    ids = []
    for path in sorted((run / "completions").glob("step-*.jsonl")):
        rows = [json.loads(row) for row in path.read_bytes().splitlines()]
        ids += list(dict.fromkeys(row["id"] for row in rows))
    return ids


def manifest(run: Path) -> dict[str, Any]:
    """Of the newest whole checkpoint."""
    newest = checkpoint.newest(run / "checkpoints")
    assert newest, "there is no whole checkpoint"
    found: dict[str, Any] = json.loads((newest / "manifest.json").read_text())
    return found


def weights_of(run: Path) -> dict[str, str]:
    """Digests of the tensors that the newest checkpoint holds: policy, critic, both optimizers."""
    files = manifest(run)["files"]
    return {name: digest for name, digest in files.items() if name.endswith(".safetensors")}


def audit(pipeline: Pipeline, steps: int, groups_per_step: int = 4) -> dict[str, str]:
    """Hold a finished run against every promise.

    Returns the groups that died, by id, with their causes; empty in a run in which none had to.
    """
    expected = steps * groups_per_step
    trained = trained_ids(pipeline.run)
    twice = [id for id, times in Counter(trained).items() if times > 1]
    assert not twice, f"trained on twice: {twice}"
    assert len(trained) == expected, f"{len(trained)} groups were trained on, not {expected}"

    issued = issued_prompts(pipeline.folder, RUN).keys()
    letters = [letter for letter in DeadLetters(pipeline.streams).all() if letter.id in issued]
    dead = {letter.id: letter.fields.get("cause", "") for letter in letters}
    assert len(dead) == len(letters) and all(dead.values()), [letter.fields for letter in letters]
    in_flight = pipeline.streams.in_flight()
    assert not in_flight, f"still in flight after the end: {in_flight}"
    assert not set(dead) & set(trained), "a group is both dead and trained on"
    assert issued == set(trained) | set(dead), issued ^ (set(trained) | set(dead))
    left = {entry.id for name in STREAMS for entry in pipeline.streams.after(name, "0")}
    assert left <= issued, f"entries that nobody owns: {left}"  # the others are second copies of what is done

    state = manifest(pipeline.run)
    assert state["step"] == steps
    assert state["loop"]["feed"]["trained"] == expected
    assert state["loop"]["feed"]["dead"].keys() == dead.keys()
    return dead
