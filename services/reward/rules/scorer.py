"""A rule as a scorer: in place where it is safe, in the pool where it may hang."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from services.reward.pool import Pool
from services.reward.protocol import NEVER, Failure, Kind, Outcome, Steps, Unscorable
from services.reward.rules.config import RuleConfig
from services.reward.rules.table import RULES
from shared.scoring import ScoreItem

PREPARE = f"{__name__}:prepare"


class RuleScorer:
    kind: Kind = "rule"

    def __init__(self, name: str, config: RuleConfig, pool: Pool) -> None:
        """Raises:
        ValueError: a package that the rule needs is not installed.
        """
        row = RULES[config.rule]
        for module in row.modules:
            if find_spec(module) is None:
                raise ValueError(
                    f"scorer {name!r} needs the Python package {module}; pip install 'rollstream[reward]'"
                )
        self.name = name
        self.description = row.description
        self.parameters: dict[str, Any] = config.model_dump(mode="json", exclude={"kind", "weight"})
        self._function, self._config = row.function, config
        self.waits = row.pooled
        self._pool = pool if row.pooled else None
        self._modules = [__name__, *row.modules]
        self._gives_way = row.gives_way

    def score(
        self, items: Sequence[ScoreItem], deadline_seconds: float, until: float = NEVER
    ) -> list[Outcome]:
        if self._pool:
            return self._pool.run(
                PREPARE, self.parameters, items, deadline_seconds, self._modules, self._gives_way, until
            )
        function, config = self._function, self._config
        outcomes: list[Outcome] = []
        for item in items:  # one loop without a call of our own: some rules take less than that would
            try:
                outcome = function(item, config)
                outcomes.append(outcome if isinstance(outcome, Steps) else float(outcome))
            except Unscorable as error:
                outcomes.append(Failure("invalid", str(error)))
            except Exception as error:  # whatever a rule raises becomes this item's status, and no other's
                outcomes.append(Failure("error", f"raised {type(error).__name__}: {error}"))
        return outcomes

    def close(self) -> None:
        """The pool is not this scorer's own."""


def prepare(parameters: Mapping[str, Any]) -> Callable[[ScoreItem], float | Steps]:
    """In a process of the pool: the rule with its parameters, as `RuleScorer.parameters` has them."""
    row = RULES[parameters["rule"]]
    config = row.table.model_validate(parameters)
    for module in map(import_module, row.modules):
        if hasattr(module, "warm_up"):
            module.warm_up()
    return lambda item: row.function(item, config)
