"""What the rollout service asks of an inference engine, and how an engine fails."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from shared.experience import Completion, Prompt


class PromptRefused(ValueError):
    """The engine can never answer this prompt: too long, unknown tokens, impossible sampling parameters."""


class EngineDead(RuntimeError):
    """The engine has stopped for good; only a new process helps."""


class UpdateFailed(RuntimeError):
    """New weights could not be loaded; the old ones are back in place."""


class ModelBroken(RuntimeError):
    """Neither the new nor the old weights could be loaded; generation stays paused."""


class Engine(Protocol):
    max_model_len: int
    """Prompt and completion tokens together."""
    dtype: str

    async def generate(self, prompt: Prompt) -> list[Completion]:
        """The prompt's `n` completions, each token with the version that sampled it.

        Raises:
        PromptRefused: trying again is of no use.
        EngineDead: as it says.
        """
        ...

    async def replace_weights(self, new: Sequence[Path], version: int, old: Sequence[Path]) -> None:
        """Serve the tensors in the safetensors files `new` as `version`, all of them or none.

        Requests in flight are kept: what they have is the old version's, what follows is the new one's and
        is computed from the new weights alone. `old` is what to fall back to.

        Raises:
        UpdateFailed, ModelBroken, EngineDead: as they say.
        """
        ...

    @property
    def dead(self) -> bool: ...

    def close(self) -> None: ...
