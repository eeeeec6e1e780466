"""The scorer that calls a user's function, in the pool's killable processes or in threads of the service."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from services.reward.plugin.config import PluginConfig
from services.reward.plugin.loading import load_function
from services.reward.plugin.signatures import Call, ItemFunction, for_item
from services.reward.plugin.threads import Threads
from services.reward.pool import Pool
from services.reward.protocol import NEVER, Kind, Outcome
from shared.scoring import ScoreItem

PREPARE = f"{__name__}:prepare"


class PluginScorer:
    kind: Kind = "plugin"
    waits = True

    def __init__(self, name: str, config: PluginConfig, pool: Pool) -> None:
        """Raises:
        ValueError: there is no such function, or its file cannot be run.
        """
        self.name = name
        self.parameters: dict[str, Any] = config.model_dump(mode="json", exclude={"kind", "weight"})
        self.parameters["function"] = config.function or name
        # Loaded here also for the pool: a mistake in the file shall end the start, not fail every item.
        function = _load(self.parameters)
        self.description = (function.__doc__ or f"a user's function, called as {config.signature}").strip()
        self.description = self.description.partition("\n")[0]
        self._pool = pool if config.run_in == "pool" else None
        self._threads = None if self._pool else Threads(config.threads, f"scorer-{name}")
        self._score_item = prepare(self.parameters)

    def score(
        self, items: Sequence[ScoreItem], deadline_seconds: float, until: float = NEVER
    ) -> list[Outcome]:
        """One outcome per item; the deadline holds from when a process or thread has the item."""
        if self._pool:
            return self._pool.run(PREPARE, self.parameters, items, deadline_seconds, [__name__], until=until)
        assert self._threads is not None, "it has either"
        tasks = [self._threads.submit(partial(self._score_item, item)) for item in items]
        return [self._threads.outcome(task, deadline_seconds, until) for task in tasks]

    def close(self) -> None:
        if self._threads:
            self._threads.close()


def prepare(parameters: Mapping[str, Any]) -> ItemFunction:
    """The function from an item to a number, by `PluginScorer.parameters`; also in the pool's processes."""
    call = Call(*(parameters[field] for field in Call._fields))
    return for_item(_load(parameters), call)


def _load(parameters: Mapping[str, Any]) -> Any:
    path = parameters["path"]
    return load_function(path and Path(path), parameters["function"], parameters["entry_point"])
