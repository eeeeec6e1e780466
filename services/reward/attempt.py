"""One scoring of one group, and what scorers see of it."""

import dataclasses
import time

from shared.entry import Entry
from shared.experience import Completion, Group, Prompt
from shared.scoring import SERVICE_KEY, ScoreItem, ScoreResult


@dataclasses.dataclass
class Attempt:
    """One scoring of one entry, not before `due` (monotonic seconds)."""

    entry: Entry
    number: int = 1
    due: float = 0.0
    group: Group | None = None
    """The entry decoded; None before the first attempt."""
    results: list[ScoreResult | None] = dataclasses.field(default_factory=list)
    """Per completion. What an attempt could score, the next one does not score again."""
    kept: dict[int, ScoreResult] = dataclasses.field(default_factory=dict)
    """By completion, the scores that are in Redis, from this worker's attempts or another's."""
    malformed: str = ""
    """Why the entry cannot be decoded."""
    taken: float = dataclasses.field(default_factory=time.monotonic)
    """When the entry was read (monotonic seconds)."""


def score_item(prompt: Prompt, completion: Completion) -> ScoreItem:
    """What scorers see of a completion: texts, and in the metadata what only the engine knows."""
    known = {"completion_tokens": len(completion.token_ids), "finish_reason": completion.finish_reason}
    return ScoreItem(
        prompt=prompt.text,
        response=completion.text,
        ground_truth=prompt.ground_truth,
        metadata={**prompt.metadata, SERVICE_KEY: known},
    )
