"""One guarded HTTP call: no redirects, no proxies, a size limit, capped retries, a circuit breaker."""

import asyncio
import json
import math
import random
from typing import Any, NoReturn

import httpx

from services.reward.external.breaker import Breaker
from services.reward.external.config import ExternalConfig

_RETRIED = frozenset({429, 500, 502, 503, 504})
_REFUSED = frozenset({400, 413, 422})
_SHOWN = 200


class CallFailed(Exception):
    """There is no usable reply. The message continues a sentence that begins with the scorer's name."""


class Refused(CallFailed):
    """The server will not have this request, or an item in it, however often it is sent."""


class _Retryable(CallFailed):
    def __init__(self, cause: str, pause: float | None = None) -> None:
        super().__init__(cause)
        self.pause = pause


class Client:
    """Posts JSON to one URL. For one event loop; the caller sets the deadline by cancelling the call."""

    def __init__(self, config: ExternalConfig, token: str | None) -> None:
        self._config = config
        self._breaker = Breaker(config.breaker_failures, config.breaker_seconds)
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        self._http = httpx.AsyncClient(
            headers=headers,
            follow_redirects=False,
            trust_env=False,  # no proxy and no netrc: texts go to the allowed host and nowhere else
            timeout=None,
            # Shorter than common servers keep a connection, so that none is used just as it is closed.
            limits=httpx.Limits(max_connections=config.max_concurrency, keepalive_expiry=2.0),
        )

    async def post(self, body: Any) -> Any:
        """The JSON of a reply with status 200.

        Raises:
        Refused: the server does not accept the body.
        CallFailed: anything else that is no proper reply, after the retries.
        """
        content = json.dumps(body).encode()
        for attempt in range(self._config.max_retries + 1):
            if seconds := self._breaker.seconds_left():
                raise CallFailed(f"is not asked for {seconds:.1f} s more: its server kept failing")
            try:
                reply = await self._call(content)
            except _Retryable as failure:
                self._breaker.failed()
                if attempt == self._config.max_retries:
                    raise CallFailed(f"{failure} (tried {attempt + 1} times)") from failure
                # Full jitter: callers that failed together do not come back together.
                longest = self._config.retry_seconds * 2**attempt
                await asyncio.sleep(random.uniform(0, longest) if failure.pause is None else failure.pause)
            except Refused:
                self._breaker.succeeded()  # the server is well; the request was not
                raise
            except asyncio.CancelledError:
                # A sandbox's item has many requests: that its time is over is no fault of the last one's.
                if self._config.contract != "sandbox_fusion":
                    self._breaker.failed()
                raise
            except CallFailed:
                self._breaker.failed()
                raise
            else:
                self._breaker.succeeded()
                return reply
        raise AssertionError("the last attempt returns or raises")

    async def close(self) -> None:
        await self._http.aclose()

    async def _call(self, content: bytes) -> Any:
        try:
            async with self._http.stream("POST", self._config.url, content=content) as response:
                body = await self._read(response)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise _Retryable(f"cannot reach its server: {error}") from error
        except httpx.HTTPError as error:
            raise CallFailed(f"lost its server's reply: {type(error).__name__}: {error}") from error
        if response.status_code != 200:
            _fail(response, body)
        try:
            return json.loads(body, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            raise CallFailed(f"got a reply that is no JSON: {_shown(body)}") from error

    async def _read(self, response: httpx.Response) -> bytes:
        if response.headers.get("content-encoding", "identity") != "identity":
            raise CallFailed("got a compressed reply, which it did not ask for")
        body, limit = bytearray(), self._config.max_reply_bytes
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > limit:
                raise CallFailed(f"got a reply longer than max_reply_bytes = {limit}")
        return bytes(body)


def _fail(response: httpx.Response, body: bytes) -> NoReturn:
    """Raise what a status other than 200 means; nothing in its body counts as a score."""
    status = response.status_code
    if 300 <= status < 400:
        raise CallFailed(f"was redirected ({status}), which is not followed; set url to the final address")
    cause = f"got status {status}: {_shown(body)}"
    if status in _RETRIED:
        after = response.headers.get("retry-after", "")
        raise _Retryable(cause, float(after) if after.isascii() and after.isdigit() else None)
    raise Refused(cause) if status in _REFUSED else CallFailed(cause)


def _shown(body: bytes) -> str:
    """The reply's beginning, with control characters made visible."""
    return repr(body[:_SHOWN].decode(errors="replace"))


def _no_number(name: str) -> float:
    """For NaN and the infinities, which servers in Python write: the trouble of one row alone."""
    return math.nan
