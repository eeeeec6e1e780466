"""The contract of `POST /v1/score`: text in, one reward or one reason per item out."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

SERVICE_KEY = "rollstream"
"""Key in an item's metadata that a data set must not use. The stream worker puts there what it knows of a
completion beside its text: `completion_tokens` (int, the stop token included) and `finish_reason` (`stop` or
`length`). Other clients may send the same."""


class ScoreItem(BaseModel):
    """One completion to score. Everything is text, so scorer and policy may have different tokenizers."""

    model_config = ConfigDict(extra="forbid")

    id: str | None = None
    """Comes back unchanged; null is answered with the item's position."""
    prompt: str = ""
    response: str
    ground_truth: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)


class ScoreRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    items: list[ScoreItem]
    scorers: list[str] | None = None
    """Scorers to use for this request instead of the configured ones, each with weight 1."""


class ScoreResult(BaseModel):
    """The outcome for one item. `reward` is null unless `status` is `ok`: a failure is never a number."""

    id: str
    reward: float | None
    components: dict[str, float] = Field(default_factory=dict)
    """What each scorer gave, before weighting."""
    steps: dict[str, list[float]] = Field(default_factory=dict)
    """Of scorers that judge parts of a response, the number of each part, in order."""
    status: Literal["ok", "error", "timeout", "invalid"]
    """`error`: a scorer raised. `timeout`: past its deadline. `invalid`: it cannot be scored as sent."""
    error: str | None = None


class ScoreResponse(BaseModel):
    results: list[ScoreResult]
