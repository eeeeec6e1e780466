"""The `[reward.scorers.NAME]` table of a user's own function."""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from services.reward.protocol import Context, Scorer, ScorerConfig

Signature = Literal["rule", "trl", "verl", "areal"]


class PluginConfig(ScorerConfig):
    """A function from a file or an installed package."""

    kind: Literal["plugin"] = "plugin"
    path: Path | None = None
    """A Python file."""
    function: str | None = None
    """The function's name in the file; without it, the scorer's name."""
    entry_point: str | None = None
    """In place of a file: an installed package's entry point of group `rollstream.scorers`, by name, or
    `package.module:function`."""
    signature: Signature = "rule"
    """How it is called: as a rule of this service, or as TRL, verl or AReaL would call it."""
    parameters: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies it
    """Handed to the function: to a rule as its second argument, to the others as keyword arguments."""
    ground_truth_as: str | None = None
    """The keyword of the ground truth for TRL (default `ground_truth`) and AReaL (default `answer`)."""
    conversational: bool = True
    """Of TRL: prompts and completions as lists of messages; false for texts."""
    run_in: Literal["pool", "service"] = "pool"
    """`pool`: in a killable process, one item at a time, without network where the system permits that (see
    `[reward.pool] network`). `service`: in threads of the service, with network; a function that hangs there
    cannot be ended and keeps its thread."""
    threads: int = Field(default=16, ge=1, le=256)
    """Of `run_in = "service"`."""

    @model_validator(mode="after")
    def _comes_from_one_place(self) -> Self:
        if (self.path is None) == (self.entry_point is None):
            raise ValueError("needs either a path to a Python file or an entry_point")
        if self.entry_point is not None and self.function is not None:
            raise ValueError("an entry_point names its function itself; leave function out")
        return self

    def build(self, name: str, context: Context) -> Scorer:
        """Raises:
        ValueError: there is no such function, or its file cannot be run.
        """
        from services.reward.plugin.scorer import PluginScorer

        return PluginScorer(name, self, context.pool)
