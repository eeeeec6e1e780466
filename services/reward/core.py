"""The scoring core behind both doors, stream and REST: items in, one result per item out."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from services.reward.composition import Composition
from services.reward.config import RewardConfig
from services.reward.kinds import parse_scorer, suggestion
from services.reward.pool import Pool
from services.reward.protocol import Context, Failure, Outcome, Scorer, ScorerConfig
from services.reward.rules.table import RULES
from shared.scoring import ScoreItem, ScoreResult


class ScoringCore:
    """Scores items with the configured scorers. Its methods may be called from any thread."""

    def __init__(self, config: RewardConfig) -> None:
        """Raises:
        ValueError: a scorer lacks what it needs.
        """
        self._config = config
        self._context = Context(Pool(config.pool))
        self._composition = Composition(config.scorers, config.composition)
        self._deadlines: dict[str, float] = {}
        self._scorers: dict[str, Scorer] = {}
        self._on_request: dict[str, Scorer] = {}
        self._building = threading.Lock()
        self.observe: Callable[[str, float], None] | None = None
        """Told of each scorer's name and seconds after each batch."""
        try:
            for name, table in config.scorers.items():
                self._scorers[name] = self._build(name, table)
        except BaseException:
            self.close()
            raise

    def score(self, items: Sequence[ScoreItem], scorers: Sequence[str] | None = None) -> list[ScoreResult]:
        """One result per item, in order. `scorers` replaces the configured ones, each with weight 1.

        Raises:
        ValueError: a name in `scorers` is no configured scorer and no rule, or there is none.
        """
        composition, built = self._composition, self._scorers
        if scorers is not None:
            if not scorers:
                raise ValueError("the list is empty; leave it out to use the configured scorers")
            built = {name: self._named(name) for name in scorers}
            composition = Composition(dict.fromkeys(scorers, ScorerConfig()))
        outcomes = self._outcomes(items, composition, built)
        longest = self._config.max_response_characters
        return [
            composition.result(id, item, known)
            if len(item.response) <= longest
            else _too_long(id, item, longest)
            for id, item, known in zip(_ids(items), items, outcomes, strict=True)
        ]

    def _outcomes(
        self, items: Sequence[ScoreItem], composition: Composition, built: Mapping[str, Scorer]
    ) -> list[dict[str, Outcome]]:
        """Per item what each scorer that it is given to made of it; after a round of gates comes the next."""
        outcomes: list[dict[str, Outcome]] = [{} for _ in items]
        longest = self._config.max_response_characters
        asked = [position for position, item in enumerate(items) if len(item.response) <= longest]
        while True:
            given: dict[str, list[int]] = {name: asked if composition.is_uniform else [] for name in built}
            if not composition.is_uniform:
                for position in asked:
                    for name in composition.scorers_for(items[position], outcomes[position]):
                        given[name].append(position)
            if not any(given.values()):
                return outcomes
            for name, positions in given.items():
                if positions:
                    started = time.perf_counter()
                    answers = _ask(built[name], [items[p] for p in positions], self._deadlines[name])
                    if self.observe:
                        self.observe(name, time.perf_counter() - started)
                    for position, outcome in zip(positions, answers, strict=True):
                        outcomes[position][name] = outcome
            if not composition.has_gates:
                return outcomes

    def describe(self) -> dict[str, Any]:
        """For `GET /v1/scorers`: the configured scorers, and the rules that a request may also name."""
        configured = {
            name: {
                "weight": self._composition.weights[name],
                "kind": scorer.kind,
                "description": scorer.description,
                "parameters": scorer.parameters,
            }
            for name, scorer in self._scorers.items()
        }
        available = {name: row.description for name, row in RULES.items() if row.on_request}
        pool = {"own_network": self._context.pool.has_own_network}  # null before its first process
        return {"configured": configured, "available": available, "pool": pool}

    def close(self) -> None:
        """End every scorer and the pool's processes."""
        for scorer in (*self._scorers.values(), *self._on_request.values()):
            scorer.close()
        self._context.pool.close()

    def _named(self, name: str) -> Scorer:
        """A configured scorer, else the rule of that name with its default parameters."""
        if name in self._scorers:
            return self._scorers[name]
        with self._building:
            if name not in self._on_request:
                if name not in RULES or not RULES[name].on_request:
                    known = [*self._scorers, *(rule for rule, row in RULES.items() if row.on_request)]
                    raise ValueError(f"unknown scorer {name!r}. {suggestion(name, known)}")
                self._on_request[name] = self._build(name, parse_scorer(name, 1.0, self._config.tags))
            return self._on_request[name]

    def _build(self, name: str, table: ScorerConfig) -> Scorer:
        self._deadlines[name] = table.deadline_seconds or self._config.deadline_seconds
        return table.build(name, self._context)


def _ids(items: Sequence[ScoreItem]) -> list[str]:
    return [str(position) if item.id is None else item.id for position, item in enumerate(items)]


def _ask(scorer: Scorer, items: Sequence[ScoreItem], deadline_seconds: float) -> list[Outcome]:
    """The outcomes of `items`. A scorer that raises against its promise spoils its own part only."""
    try:
        outcomes = scorer.score(items, deadline_seconds)
    except Exception as error:  # it becomes the items' status, with its cause
        return [Failure("error", f"raised {type(error).__name__}: {error}")] * len(items)
    if len(outcomes) != len(items):
        return [Failure("error", f"gave {len(outcomes)} outcomes for {len(items)} items")] * len(items)
    return outcomes


def _too_long(id: str, item: ScoreItem, limit: int) -> ScoreResult:
    cause = f"response has {len(item.response)} characters, more than max_response_characters = {limit}"
    return ScoreResult(id=id, reward=None, status="invalid", error=cause)
