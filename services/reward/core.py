"""The scoring core behind both doors, stream and REST: items in, one result per item out."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from services.reward.composition import Composition
from services.reward.config import RewardConfig
from services.reward.kinds import parse_scorer, suggestion
from services.reward.pool import Pool
from services.reward.protocol import NEVER, Context, Failure, Outcome, Scorer, ScorerConfig, SoonScorer
from services.reward.rules.table import RULES
from shared.scoring import ScoreItem, ScoreResult

DEFAULT = "default:"
"""Before a rule's name: the rule with its default parameters, also where the name is configured otherwise."""


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
        # For every request at work, all scorers but one may have to be waited for.
        most = (config.request_threads + config.concurrent_groups) * len(config.scorers)
        self._threads = ThreadPoolExecutor(most, thread_name_prefix="scorer")
        self.observe: Callable[[str, float], None] | None = None
        """Told of each scorer's name and seconds after each batch."""
        try:
            for name, table in config.scorers.items():
                self._scorers[name] = self._build(name, table)
        except BaseException:
            self.close()
            raise
        found = self._scorers.items()
        self._awaitable = {name: scorer for name, scorer in found if isinstance(scorer, SoonScorer)}

    def score(
        self, items: Sequence[ScoreItem], scorers: Sequence[str] | None = None, until: float = NEVER
    ) -> list[ScoreResult]:
        """One result per item, in order. `scorers` replaces the configured ones, each with weight 1.

        until: as in `Scorer.score`.

        Raises:
        ValueError: a name in `scorers` is no configured scorer and no rule, or there is none.
        """
        composition, built = self._composition, self._scorers
        if scorers is not None:
            if not scorers:
                raise ValueError("the list is empty; leave it out to use the configured scorers")
            built = {name: self._named(name) for name in scorers}
            composition = Composition(dict.fromkeys(scorers, ScorerConfig()))
        asked = self._short_enough(items)
        outcomes = self._outcomes([item for _, item in asked], composition, built, until)
        return self._complete(items, composition.results(asked, outcomes))

    @property
    def can_score_soon(self) -> bool:
        """Whether `score_soon` knows how to ask the configured scorers."""
        return self._composition.is_uniform and len(self._awaitable) == len(self._scorers)

    async def score_soon(self, items: Sequence[ScoreItem], until: float = NEVER) -> list[ScoreResult]:
        """As `score` by the configured scorers, but no thread waits; see `can_score_soon`."""
        asked = self._short_enough(items)
        texts = [item for _, item in asked]
        answers = await asyncio.gather(*(self._ask_soon(name, texts, until) for name in self._scorers))
        outcomes = [dict(zip(self._scorers, row, strict=True)) for row in zip(*answers, strict=True)]
        return self._complete(items, self._composition.results(asked, outcomes))

    def _short_enough(self, items: Sequence[ScoreItem]) -> list[tuple[str, ScoreItem]]:
        """Those that are scored at all, with their ids."""
        longest = self._config.max_response_characters
        return [pair for pair in zip(_ids(items), items, strict=True) if len(pair[1].response) <= longest]

    def _complete(self, items: Sequence[ScoreItem], results: list[ScoreResult]) -> list[ScoreResult]:
        """With what is said of the items that were too long, in the order of `items`."""
        if len(results) == len(items):
            return results
        longest, scored = self._config.max_response_characters, iter(results)
        return [
            next(scored) if len(item.response) <= longest else _too_long(id, item, longest)
            for id, item in zip(_ids(items), items, strict=True)
        ]

    def _outcomes(
        self,
        items: Sequence[ScoreItem],
        composition: Composition,
        built: Mapping[str, Scorer],
        until: float,
    ) -> list[dict[str, Outcome]]:
        """Per item what each scorer that it is given to made of it; after a round of gates comes the next."""
        outcomes: list[dict[str, Outcome]] = [{} for _ in items]
        everything = list(range(len(items)))
        while True:
            given: dict[str, list[int]] = {
                name: everything if composition.is_uniform else [] for name in built
            }
            if not composition.is_uniform:
                for position in everything:
                    for name in composition.scorers_for(items[position], outcomes[position]):
                        given[name].append(position)
            if not any(given.values()):
                return outcomes
            parts = {name: [items[p] for p in positions] for name, positions in given.items() if positions}
            for name, answers in self._ask_all(parts, built, until).items():
                for position, outcome in zip(given[name], answers, strict=True):
                    outcomes[position][name] = outcome
            if not composition.has_gates:
                return outcomes

    def _ask_all(
        self, parts: Mapping[str, Sequence[ScoreItem]], built: Mapping[str, Scorer], until: float
    ) -> dict[str, list[Outcome]]:
        """Each scorer's outcomes for its items. Those that are waited for work at the same time."""
        waiting = {
            name: self._threads.submit(self._ask, name, built[name], items, until)
            for name, items in parts.items()
            if built[name].waits and len(parts) > 1
        }
        here = {
            name: self._ask(name, built[name], parts[name], until) for name in parts if name not in waiting
        }
        return {name: here[name] if name in here else waiting[name].result() for name in parts}

    def _ask(self, name: str, scorer: Scorer, items: Sequence[ScoreItem], until: float) -> list[Outcome]:
        outcomes: list[Outcome] = []
        with self._watched(name, outcomes, len(items)):
            outcomes += scorer.score(items, self._deadlines[name], until)
        return outcomes

    async def _ask_soon(self, name: str, items: Sequence[ScoreItem], until: float) -> list[Outcome]:
        outcomes: list[Outcome] = []
        with self._watched(name, outcomes, len(items)):
            outcomes += await self._awaitable[name].score_soon(items, self._deadlines[name], until)
        return outcomes

    @contextlib.contextmanager
    def _watched(self, name: str, outcomes: list[Outcome], count: int) -> Iterator[None]:
        """Within it a scorer fills `outcomes`. One that raises against its promise spoils its own part."""
        started = time.perf_counter()
        try:
            yield
            if len(outcomes) != count:
                outcomes[:] = [Failure("error", f"gave {len(outcomes)} outcomes for {count} items")] * count
        except Exception as error:  # it becomes the items' status, with its cause
            outcomes[:] = [Failure("error", f"raised {type(error).__name__}: {error}")] * count
        finally:
            if self.observe:
                self.observe(name, time.perf_counter() - started)

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
        self._threads.shutdown(wait=False)

    def _named(self, name: str) -> Scorer:
        """A configured scorer, else the rule of that name with its default parameters; see also `DEFAULT`."""
        if name in self._scorers:
            return self._scorers[name]
        with self._building:
            if name not in self._on_request:
                rule = name.removeprefix(DEFAULT)
                if rule not in RULES or not RULES[rule].on_request:
                    known = [*self._scorers, *(rule for rule, row in RULES.items() if row.on_request)]
                    raise ValueError(f"unknown scorer {name!r}. {suggestion(name, known)}")
                self._on_request[name] = self._build(name, parse_scorer(rule, 1.0, self._config.tags))
            return self._on_request[name]

    def _build(self, name: str, table: ScorerConfig) -> Scorer:
        self._deadlines[name] = table.deadline_seconds or self._config.deadline_seconds
        return table.build(name, self._context)


def _ids(items: Sequence[ScoreItem]) -> list[str]:
    return [str(position) if item.id is None else item.id for position, item in enumerate(items)]


def _too_long(id: str, item: ScoreItem, limit: int) -> ScoreResult:
    cause = f"response has {len(item.response)} characters, more than max_response_characters = {limit}"
    return ScoreResult(id=id, reward=None, status="invalid", error=cause)
