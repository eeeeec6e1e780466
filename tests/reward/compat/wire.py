"""Requests as the trainers' HTTP libraries put them on the wire, byte for byte but for the host.

Recorded from requests 2.34.2 and aiohttp 3.14.5 posting `json=payload`; both write a payload as Python's
`json.dumps` does.
"""

import base64
import json
import socket
from typing import Any, NamedTuple
from urllib.parse import urlsplit

REQUESTS = (
    "POST {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: python-requests/2.34.2\r\n"
    "Accept-Encoding: gzip, deflate\r\nAccept: */*\r\nConnection: keep-alive\r\n"
    "Content-Type: application/json\r\nContent-Length: {length}\r\n{authorization}\r\n"
)
AIOHTTP = (
    "POST {path} HTTP/1.1\r\nHost: {host}\r\nAccept: */*\r\nAccept-Encoding: gzip, deflate\r\n"
    "User-Agent: Python/3.11 aiohttp/3.14.5\r\n{authorization}Content-Length: {length}\r\n"
    "Content-Type: application/json\r\n\r\n"
)


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str

    def json(self) -> Any:
        return json.loads(self.text)

    def raise_for_status(self) -> None:
        """As requests and aiohttp do it."""
        if self.status >= 400:
            raise ConnectionError(f"{self.status}: {self.text}")


def post(library: str, url: str, payload: Any) -> Answer:
    """One request over a socket of its own; a user name and password in the URL are sent as both do."""
    parts = urlsplit(url)
    assert parts.hostname and parts.port
    host = f"{parts.hostname}:{parts.port}"
    authorization = ""
    if parts.username is not None:
        pair = base64.b64encode(f"{parts.username}:{parts.password}".encode()).decode()
        authorization = f"Authorization: Basic {pair}\r\n"
    body = json.dumps(payload).encode()
    head = library.format(path=parts.path, host=host, length=len(body), authorization=authorization)
    with socket.create_connection((parts.hostname, parts.port), timeout=20) as connection:
        connection.sendall(head.encode() + body)
        return _read(connection)


def _read(connection: socket.socket) -> Answer:
    data = b""
    while b"\r\n\r\n" not in data:
        data += _more(connection)
    head, _, rest = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    while len(rest) < int(headers["content-length"]):
        rest += _more(connection)
    return Answer(int(first.split()[1]), headers, rest.decode())


def _more(connection: socket.socket) -> bytes:
    received = connection.recv(65536)
    assert received, "the service closed the connection"
    return received
