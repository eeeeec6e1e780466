"""What the rollout service asks of an inference engine, and how an engine fails."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from shared.experience import Completion, Prompt


class PromptRefused(ValueError):
    """The engine can never answer this prompt: too long, unknown tokens, impossible sampling parameters."""


class SomeFailed(RuntimeError):
    """Some of a prompt's completions cannot be used: the cause of each, and the others."""

    def __init__(self, causes: list[str], completions: list[Completion]) -> None:
        super().__init__("; ".join(causes))
        self.causes = causes
        self.completions = completions


class EngineDead(RuntimeError):
    """The engine has stopped for good; only a new process helps."""


class UpdateFailed(RuntimeError):
    """New weights could not be loaded; the old ones are back in place."""


class ModelBroken(RuntimeError):
    """An update stopped half way: nobody knows which weights are loaded, and generation stays paused. Only a
    new process helps."""


CACHE_BOUND = 0.8
"""Share of the cache from which on it counts as full: what is running still grows."""


@dataclass(frozen=True)
class EngineLoad:
    """How busy an engine was since it was asked last. A completion is a request of its own."""

    steps: int
    """How often it has computed a token of each. Without any, the rest is what it was before."""
    running: int
    """Requests computed in each step, now."""
    waiting: int
    """The fewest that waited to be at any time."""
    kv_cache_use: float
    """Share of the cache for keys and values that is in use now, 0 to 1."""
    preempted: int
    """Requests that lost their place in the cache to others."""
    most_running: int
    """Requests that it can compute in each step."""

    @property
    def has_room(self) -> bool:
        """Whether it could compute more than it does. What waits all the same waits for its turn only."""
        return self.running < self.most_running and self.kv_cache_use < CACHE_BOUND

    @property
    def is_too_much(self) -> bool:
        return self.preempted > 0 or (self.waiting > 0 and not self.has_room)


class Engine(Protocol):
    max_model_len: int
    """Prompt and completion tokens together."""
    dtype: str

    async def generate(self, prompt: Prompt) -> list[Completion]:
        """The prompt's `n` completions, each token with the version that sampled it.

        Raises:
        PromptRefused: trying again is of no use.
        SomeFailed: another try may bring all of them.
        EngineDead: as it says.
        """
        ...

    async def replace_weights(self, new: Sequence[Path], version: int, old: Sequence[Path]) -> None:
        """Serve the tensors in the safetensors files `new` as `version`, all of them or none.

        Requests in flight are kept: what they have is the old version's, what follows is the new one's.
        Whether that is computed from the new weights alone, or also from keys and values that the old ones
        left, is up to `[rollout] kv_cache_at_update`. `old` is what to fall back to.

        Raises:
        UpdateFailed, ModelBroken, EngineDead: as they say.
        """
        ...

    def load(self) -> EngineLoad:
        """How busy it was since the last call."""
        ...

    @property
    def dead(self) -> bool: ...

    def close(self) -> None: ...
