"""What all scoring routes share: who is let in, how a body becomes items, and how items become an answer."""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec
from fastapi import Request, Response
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from services.reward.config import RewardConfig
from services.reward.core import ScoringCore
from services.reward.limits import HeldBytes, RateLimit, is_allowed, read_body
from services.reward.metrics import Metrics
from services.reward.problems import Problem, invalid_body, invalid_structure, refusal, refusal_of
from services.reward.protocol import ScorerConfig
from services.reward.rules.config import RuleConfig
from services.reward.rules.table import RULES
from shared.scoring import ScoreItem, ScoreResult

log = logging.getLogger("rollstream")

Wanted = TypeVar("Wanted", bound=BaseModel | msgspec.Struct)

QUICK_BYTES = 131072
"""A shorter request for rules that cannot hang is answered in the event loop itself."""

SOON_BYTES = 16384
"""A shorter request for scorers that can be awaited takes no thread; its tokens are quickly made here."""

FAILED = {"invalid": 422, "error": 503, "timeout": 504}
"""The answer where a contract has no status per item; the first of them that some item has."""


class Door:
    """Lets requests in and has them answered in threads; one for all routes, so that its limits are too."""

    def __init__(
        self,
        config: RewardConfig,
        core: ScoringCore,
        token: str | None,
        metrics: Metrics,
        watch_token: str | None = None,
    ) -> None:
        """
        Args:
            token: opens every route.
            watch_token: opens the routes that show something, and none that scores.
        """
        self.config = config
        self.core = core
        self._to_score = [token] if token else []
        self._to_watch = [one for one in (token, watch_token) if one]
        self._metrics = metrics
        self._rate = RateLimit(config.max_requests_per_second) if config.max_requests_per_second else None
        self._threads = ThreadPoolExecutor(config.request_threads, thread_name_prefix="door")
        # Handing a request to a thread and back takes longer than linear-time rules take for a short text.
        self._quick = all(_is_quick(table) for table in config.scorers.values())
        self._soon = core.can_score_soon
        self._inside = 0
        self._held = HeldBytes(config.max_held_bytes)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def admit(self, request: Request) -> None:
        """Let one in that wants items scored.

        Raises:
        HTTPException: 429 or 401. The rate comes first, so that it also bounds guesses at the token.
        """
        self._let_in(request, self._to_score)

    async def admit_watcher(self, request: Request) -> None:
        """Let one in that only looks; raises as `admit`."""
        self._let_in(request, self._to_watch)

    def _let_in(self, request: Request, tokens: Sequence[str]) -> None:
        if self._rate:
            seconds = self._rate.seconds_to_wait(request.client.host if request.client else "")
            if seconds:
                limit = f"max_requests_per_second = {self.config.max_requests_per_second:g}"
                raise refusal(429, f"more than {limit} from this address", headers=_retry_after(seconds))
        if tokens:
            header = request.headers.get("authorization")
            if not any(is_allowed(header, token) for token in tokens):
                raise refusal(401, "bearer token missing or wrong", headers={"WWW-Authenticate": "Bearer"})

    async def serve(
        self,
        request: Request,
        wanted: type[Wanted],
        answer: Callable[[Wanted, "Door"], Any],
        own_scorer: bool = False,
        soon: Callable[[Wanted, "Door"], Awaitable[Any]] | None = None,
    ) -> Response:
        """Read a `wanted` from the request and send what `answer` makes of it.

        own_scorer: whether `answer` asks another scorer than the configured ones.
        soon: does the same by `score_soon`, if it is there.

        Raises:
        HTTPException: 408, 413, 422 or 429; whatever `answer` raises.
        """
        if self._inside >= self.config.max_waiting_requests:
            limit = f"max_waiting_requests = {self.config.max_waiting_requests}"
            raise refusal(429, f"{limit} are being served", headers=_retry_after(1))
        self._inside += 1
        self._metrics.waiting.set(self._inside)
        try:
            with self._held.share() as share:
                body = await read_body(request, self.config.max_body_bytes, self.config.body_seconds, share)
                if self._quick and not own_scorer and len(body) <= QUICK_BYTES:
                    asked = _parse(body, wanted)
                    if getattr(asked, "scorers", None) is None:
                        return _json(answer(asked, self))
                if soon and self._soon and len(body) <= SOON_BYTES:
                    asked = _parse(body, wanted)
                    if getattr(asked, "scorers", None) is None:
                        return _json(await soon(asked, self))
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(
                    self._threads, lambda: _json(answer(_parse(body, wanted), self))
                )
        finally:
            self._inside -= 1
            self._metrics.waiting.set(self._inside)

    def score(self, items: Sequence[ScoreItem], scorers: Sequence[str] | None = None) -> list[ScoreResult]:
        """One result per item, in order.

        Raises:
        HTTPException: 413 for too many items, 422 for texts that are too long or a scorer there is not.
        """
        self._check(items)
        try:
            results = self.core.score(items, scorers, self._end())
        except ValueError as error:
            raise refusal(422, str(error), field="scorers") from error
        self._metrics.count_items(results)
        return results

    async def score_soon(self, items: Sequence[ScoreItem]) -> list[ScoreResult]:
        """The same by the configured scorers, awaited.

        Raises:
        HTTPException: 413 or 422, as `score`.
        """
        self._check(items)
        results = await self.core.score_soon(items, self._end())
        self._metrics.count_items(results)
        return results

    def _end(self) -> float:
        """When a request that comes now must be answered."""
        return time.monotonic() + self.config.request_seconds

    def _check(self, items: Sequence[ScoreItem]) -> None:
        self.check_count(len(items))
        limit = self.config.max_text_characters
        for item in items:  # without building what only the message needs
            if len(item.prompt) > limit or len(item.ground_truth or "") > limit:
                self.check_texts(
                    (position, field, text)
                    for position, item in enumerate(items)
                    for field, text in (("prompt", item.prompt), ("ground_truth", item.ground_truth or ""))
                )

    def need(self, scorer: str) -> None:
        """Raises:
        HTTPException: 501 if there is no such scorer, or not what it needs.
        """
        try:
            self.core.score([], [scorer])
        except ValueError as error:
            raise refusal(501, f"this route needs the scorer {scorer!r}: {error}") from error

    def score_all(
        self, items: Sequence[ScoreItem], scorers: Sequence[str] | None = None
    ) -> list[tuple[float, dict[str, float]]]:
        """Reward and components of every item, for contracts in which each must have one.

        Raises:
        HTTPException: as `score` and `all_of`.
        """
        return self.all_of(self.score(items, scorers))

    @staticmethod
    def all_of(results: Sequence[ScoreResult]) -> list[tuple[float, dict[str, float]]]:
        """Reward and components of every result.

        Raises:
        HTTPException: 422, 503 or 504 if any has no reward, naming those items.
        """
        scored, failed = [], []
        for position, result in enumerate(results):
            if result.reward is None:
                failed.append((position, result))
            else:
                scored.append((result.reward, result.components))
        if failed:
            status = next(s for name, s in FAILED.items() if any(r.status == name for _, r in failed))
            problems = [Problem(item=p, message=f"{r.status}: {r.error}") for p, r in failed]
            # Some clients throw our answer away: this line is then all that people see.
            log.warning("%d of %d items not scored, answered %d: %.300r", len(failed), len(results), status,
                        problems[0].message)  # fmt: skip
            raise refusal_of(status, problems, _retry_after(1) if status == 503 else None)
        return scored

    def check_count(self, count: int) -> None:
        """Raises:
        HTTPException: 413 for more items than a request may have.
        """
        if count > self.config.max_items:
            limit = f"max_items = {self.config.max_items}"
            raise refusal(413, f"{count} items; at most {limit} at a time")

    def check_texts(self, texts: Iterable[tuple[int, str, str]]) -> None:
        """texts: position of the item, field, and text.

        Raises:
        HTTPException: 422 for texts that are too long.
        """
        limit = self.config.max_text_characters
        problems = [
            Problem(item=position, field=field, message=f"longer than max_text_characters = {limit}")
            for position, field, text in texts
            if len(text) > limit
        ]
        if problems:
            raise refusal_of(422, problems)


def _parse(body: bytes, wanted: type[Wanted]) -> Wanted:
    try:
        if issubclass(wanted, BaseModel):
            return wanted.model_validate_json(body)
        return msgspec.json.decode(body, type=wanted)
    except ValidationError as error:
        raise invalid_body(error) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid_structure(error) from error


def _json(answer: Any) -> Response:
    own = isinstance(answer, msgspec.Struct)
    content = msgspec.json.encode(answer) if own else to_json(answer, inf_nan_mode="null")
    return Response(content, media_type="application/json")


def _is_quick(table: ScorerConfig) -> bool:
    return isinstance(table, RuleConfig) and not RULES[table.rule].pooled


def _retry_after(seconds: float) -> dict[str, str]:
    return {"Retry-After": str(math.ceil(seconds))}
