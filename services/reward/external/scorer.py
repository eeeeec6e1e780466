"""The scorer that asks a server: batches, deadlines and failures per item, on an event loop of its own."""

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

from services.reward.external.client import CallFailed, Client, Refused
from services.reward.external.config import ExternalConfig
from services.reward.external.contracts import CONTRACTS, Malformed, read_reply
from services.reward.external.judge import CHAT_JUDGE
from services.reward.external.sandbox import run_tests
from services.reward.protocol import NEVER, OVERDUE, Failure, Kind, Outcome, Unscorable
from shared.scoring import ScoreItem

_ALL = {**CONTRACTS, "chat_judge": CHAT_JUDGE}
_ONE_BY_ONE = ("chat_judge", "sandbox_fusion")


class ExternalScorer:
    """A `Scorer` whose numbers come from a server. Nothing that goes wrong there becomes a number here."""

    kind: Kind = "external"
    waits = True

    def __init__(self, name: str, config: ExternalConfig, token: str | None) -> None:
        self.name = name
        self.description = f"asks a server, contract {config.contract}"
        self.parameters: dict[str, Any] = config.model_dump(mode="json", exclude={"kind", "weight"})
        self._config = config
        alone = config.contract in _ONE_BY_ONE or config.send == "messages"
        self._batch_size = 1 if alone else config.batch_size
        self._client = Client(config, token)
        self._turns = asyncio.Semaphore(config.max_concurrency)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"scorer-{name}", daemon=True)
        self._thread.start()

    def score(
        self, items: Sequence[ScoreItem], deadline_seconds: float, until: float = NEVER
    ) -> list[Outcome]:
        """One outcome per item. The deadline holds for a request with its retries, from its turn on."""
        return asyncio.run_coroutine_threadsafe(
            self._score(items, deadline_seconds, until), self._loop
        ).result()

    async def score_soon(
        self, items: Sequence[ScoreItem], deadline_seconds: float, until: float = NEVER
    ) -> list[Outcome]:
        """The same, awaited in another event loop."""
        work = asyncio.run_coroutine_threadsafe(self._score(items, deadline_seconds, until), self._loop)
        return await asyncio.wrap_future(work)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._client.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _score(
        self, items: Sequence[ScoreItem], deadline_seconds: float, until: float
    ) -> list[Outcome]:
        size = self._batch_size
        batches = [items[start : start + size] for start in range(0, len(items), size)]
        parts = await asyncio.gather(*(self._batch(batch, deadline_seconds, until) for batch in batches))
        return [outcome for part in parts for outcome in part]

    async def _batch(
        self, items: Sequence[ScoreItem], deadline_seconds: float, until: float
    ) -> list[Outcome]:
        try:
            async with asyncio.timeout_at(until), self._turns, asyncio.timeout(deadline_seconds):
                return await self._ask(items)
        except TimeoutError:
            late = Failure("timeout", f"had no answer within {deadline_seconds:g} s")
            failure = OVERDUE if time.monotonic() >= until else late
        except Unscorable as error:
            failure = Failure("invalid", str(error))
        except Refused as error:
            failure = Failure("invalid", str(error))
        except (CallFailed, Malformed) as error:
            return [Failure("error", str(error))] * len(items)
        if failure.status == "invalid" and len(items) > 1:
            # One item may have spoilt the request for the others: halves find out which.
            middle = len(items) // 2
            halves = [self._batch(half, deadline_seconds, until) for half in (items[:middle], items[middle:])]
            return [outcome for part in await asyncio.gather(*halves) for outcome in part]
        return [failure] * len(items)

    async def _ask(self, items: Sequence[ScoreItem]) -> list[Outcome]:
        if self._config.contract == "sandbox_fusion":
            return [await run_tests(self._client.post, item, self._config) for item in items]
        contract = _ALL[self._config.contract]
        reply = await self._client.post(contract.build(items, self._config))
        return read_reply(contract, reply, len(items), self._config)
