"""A closed loop of HTTP requests, as cheap as Python allows: the sender shall not be what is measured.

Requests are bytes made beforehand. Answers are kept as bytes and read after the clock has stopped.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Answer(NamedTuple):
    status: int
    body: bytes
    seconds: float
    """From the request's first byte to the answer's last."""


class Load(NamedTuple):
    answers: list[Answer]
    """In the order of the requests."""
    seconds: float
    """From the first request to the last answer."""

    @property
    def rate(self) -> float:
        """Answers a second."""
        return len(self.answers) / self.seconds


def request(path: str, body: bytes) -> bytes:
    """The bytes of one `POST`."""
    head = f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def send(ports: Sequence[int], requests: Sequence[bytes], connections: int) -> Load:
    """Send all requests to ports of this machine, whose connections take turns in being theirs.

    Each connection sends its next request when it has the answer to the last.

    Raises:
        ConnectionError: an answer did not come whole.
    """
    return asyncio.run(_send(ports, requests, connections))


async def _send(ports: Sequence[int], requests: Sequence[bytes], connections: int) -> Load:
    loop = asyncio.get_running_loop()
    answers: list[Answer | None] = [None] * len(requests)
    left = iter(range(len(requests)))
    clients = []
    for number in range(min(connections, len(requests))):
        _, client = await loop.create_connection(
            lambda: _Client(requests, left, answers), "127.0.0.1", ports[number % len(ports)]
        )
        clients.append(client)
    started = time.perf_counter()
    for client in clients:
        client.next()
    await asyncio.gather(*(client.finished for client in clients))
    seconds = time.perf_counter() - started
    return Load([answer for answer in answers if answer], seconds)


class _Client(asyncio.Protocol):
    def __init__(self, requests: Sequence[bytes], left: Iterator[int], answers: list[Answer | None]) -> None:
        self._requests = requests
        self._left = left
        self._answers = answers
        self._number = -1
        self._began = 0.0
        self._received = bytearray()
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def next(self) -> None:
        self._number = next(self._left, -1)
        if self._number < 0:
            self.finished.set_result(None)
            self._transport.close()
            return
        self._began = time.perf_counter()
        self._transport.write(self._requests[self._number])

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        if end and len(body) >= content_length(head):
            seconds = time.perf_counter() - self._began
            self._answers[self._number] = Answer(int(head[9:12]), bytes(body), seconds)
            self._received.clear()
            self.next()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.finished.done():
            self.finished.set_exception(ConnectionError(f"request {self._number} was not answered: {error}"))


def content_length(head: bytes | bytearray) -> int:
    """Raises:
    ConnectionError: the answer does not say how long it is.
    """
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line[15:])
    raise ConnectionError(f"an answer without a length: {bytes(head[:200])!r}")
