"""The contract of `POST /v1/score`: text in, one reward or one reason per item out."""

from typing import Any, Literal

import msgspec

SERVICE_KEY = "rollstream"
"""Key in an item's metadata that a data set must not use. The stream worker puts there what it knows of a
completion beside its text: `completion_tokens` (int, the stop token included) and `finish_reason` (`stop` or
`length`). Other clients may send the same."""


class ScoreItem(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One completion to score. Everything is text, so scorer and policy may have different tokenizers."""

    id: str | None = None
    """Comes back unchanged; null is answered with the item's position."""
    prompt: str = ""
    response: str
    ground_truth: str | None = None
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)


class ScoreRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    items: list[ScoreItem]
    scorers: list[str] | None = None
    """Scorers to use for this request instead of the configured ones, each with weight 1."""


class StepReward(msgspec.Struct, frozen=True):
    """A part of a reward that is earned within the response."""

    end: int
    """Characters of the response after which it is earned."""
    reward: float


class ScoreResult(msgspec.Struct):
    """The outcome for one item. `reward` is null unless `status` is `ok`: a failure is never a number."""

    id: str
    reward: float | None
    components: dict[str, float] = msgspec.field(default_factory=dict)
    """What each scorer gave, before weighting."""
    steps: dict[str, list[float]] = msgspec.field(default_factory=dict)
    """Of scorers that judge parts of a response, the number of each part, in order."""
    status: Literal["ok", "error", "timeout", "invalid"] = "ok"
    """`error`: a scorer raised. `timeout`: past its deadline. `invalid`: it cannot be scored as sent."""
    error: str | None = None
    step_rewards: list[StepReward] | msgspec.UnsetType = msgspec.UNSET
    """Parts of `reward`, where scorers place their steps; the rest is earned at the end."""


class ScoreResponse(msgspec.Struct):
    results: list[ScoreResult]
