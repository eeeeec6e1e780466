"""Killable processes for work that may hang or use up memory: a deadline and limits for each item."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from services.reward.protocol import Outcome
from shared.config import Table
from shared.scoring import ScoreItem


class PoolConfig(Table):
    workers: int = Field(default=2, ge=1, le=256)
    """Processes for rules that may hang. They start with the first item that needs one."""
    memory_mb: int = Field(default=2048, ge=128)
    """Address space of each process."""


class Pool:
    """Runs functions in processes that are killed at an item's deadline and replaced. Thread-safe."""

    def __init__(self, config: PoolConfig) -> None:
        self._config = config

    def run(
        self, prepare: str, parameters: Mapping[str, Any], items: Sequence[ScoreItem], deadline_seconds: float
    ) -> list[Outcome]:
        """One outcome per item, in order, of the function that `prepare` names.

        prepare: `module:function` of this distribution. In the process it is called once with `parameters`
            (values that msgpack can carry) and gives the function from an item to a number. That function may
            raise `Unscorable`; whatever else it raises is an `error`.
        """
        raise NotImplementedError

    def close(self) -> None:
        """End all processes."""
