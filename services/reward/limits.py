"""Who may ask, how often, and how much at a time."""

import asyncio
import base64
import binascii
import contextlib
import time
from collections.abc import Callable, Iterator

from fastapi import Request
from starlette.requests import ClientDisconnect

from services.reward.problems import refusal
from shared.auth import is_authorised

CLIENTS_REMEMBERED = 10_000


class RateLimit:
    """A token bucket per client: it holds one second's worth of requests and refills at `rate` a second.

    Kept as one number per client, the moment at which its bucket is full again (the generic cell rate
    algorithm, ITU-T I.371), which says the same as a count and a time.
    """

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = 1 / rate
        self._depth = max(1.0, rate) * self._interval
        self._clock = clock
        self._full_at: dict[str, float] = {}

    def seconds_to_wait(self, client: str) -> float:
        """0 if the client may ask now, which takes one token; else when it may."""
        now = self._clock()
        full_at = max(now, self._full_at.get(client, now)) + self._interval
        if full_at - now > self._depth + 1e-9:
            return full_at - now - self._depth
        if len(self._full_at) >= CLIENTS_REMEMBERED:
            self._forget_full(now)
        self._full_at[client] = full_at
        return 0.0

    def _forget_full(self, now: float) -> None:
        """A full bucket is as good as none; where none is full, the fullest half goes."""
        emptiest = sorted(self._full_at.items(), key=lambda bucket: -bucket[1])
        self._full_at = {
            client: full_at for client, full_at in emptiest[: CLIENTS_REMEMBERED // 2] if full_at > now
        }


def is_allowed(header: str | None, token: str) -> bool:
    """Whether `Authorization` carries the token, as a bearer's or as the password of HTTP Basic.

    Basic is what a URL like `http://rollstream:TOKEN@host/get_reward` makes requests and aiohttp send, and so
    the only way for trainers whose setting is a bare URL.
    """
    return is_authorised(header, token) or is_authorised(f"Bearer {_basic_password(header)}", token)


def _basic_password(header: str | None) -> str:
    scheme, _, credentials = (header or "").partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(credentials, validate=True).decode().partition(":")[2]
    except (binascii.Error, ValueError):
        return ""


class HeldBytes:
    """What the bodies of all requests being served may hold together. For one event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0

    @contextlib.contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """Within it, what takes bytes for one request; afterwards they are free again."""
        taken = 0

        def take(count: int) -> None:
            """Raises:
            HTTPException: 429, there are no more.
            """
            nonlocal taken
            if self._held + count > self._most:
                message = f"the requests being served hold max_held_bytes = {self._most}"
                raise refusal(429, message, headers={"Retry-After": "1"})
            self._held += count
            taken += count

        try:
            yield take
        finally:
            self._held -= taken


async def read_body(request: Request, limit: int, seconds: float, take: Callable[[int], None]) -> bytes:
    """take: told of the bytes before they are kept; see `HeldBytes`.

    Raises:
    HTTPException: 413 as soon as it is longer than `limit` bytes, or says that it will be; 408 if it is not
        there in `seconds`; 499 if the client left before it was; 429 by `take`.
    """
    said = request.headers.get("content-length", "")
    if not (said.isdecimal() and int(said[:20]) > limit):
        chunks: list[bytes] = []
        length = 0
        try:
            async with asyncio.timeout(seconds):
                async for chunk in request.stream():
                    length += len(chunk)
                    if length > limit:
                        break
                    take(len(chunk))
                    chunks.append(chunk)
                else:
                    return b"".join(chunks)
        except TimeoutError as error:
            raise refusal(408, f"the body was not sent in body_seconds = {seconds:g}") from error
        except ClientDisconnect as error:  # nobody reads the answer, but the metrics count it
            raise refusal(499, "the client left before it had sent its body") from error
    raise refusal(413, f"the body is longer than max_body_bytes = {limit}; send fewer items")
