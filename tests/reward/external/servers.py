"""Small HTTP servers for the scorers to ask: each test says what its server answers."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from services.reward.external.config import ExternalConfig
from services.reward.external.scorer import ExternalScorer
from services.reward.protocol import Outcome
from shared.scoring import ScoreItem


class Reply(NamedTuple):
    body: Any
    """Sent as JSON; bytes as they are."""
    status: int = 200
    headers: dict[str, str] = {}  # noqa: RUF012 - never written to


class Seen(NamedTuple):
    path: str
    headers: dict[str, str]
    body: Any


class Server:
    """Answers every POST by what `answer` gives for its JSON, and keeps what it saw."""

    def __init__(self, answer: Callable[[Any], Reply]) -> None:
        seen = self.seen = list[Seen]()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                seen.append(Seen(self.path, {k.lower(): v for k, v in self.headers.items()}, body))
                reply = answer(body)
                content = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
                self.send_response(reply.status)
                for key, value in reply.headers.items():
                    self.send_header(key, value)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                with contextlib.suppress(ConnectionError):
                    self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=lambda: self._http.serve_forever(poll_interval=0.02))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def stop(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


@contextlib.contextmanager
def serving(answer: Callable[[Any], Reply]) -> Iterator[Server]:
    server = Server(answer)
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def scorer_of(url: str, token: str | None = None, **settings: Any) -> Iterator[ExternalScorer]:
    config = ExternalConfig.model_validate({"url": url, "retry_seconds": 0.01, **settings})
    scorer = ExternalScorer("outside", config, token)
    try:
        yield scorer
    finally:
        scorer.close()


def items(*responses: str, **fields: Any) -> list[ScoreItem]:
    return [ScoreItem(prompt="ask: ", response=response, **fields) for response in responses]


def ask(answer: Callable[[Any], Reply], given: list[ScoreItem], **settings: Any) -> list[Outcome]:
    """What a scorer with `settings` makes of `given` when its server answers so."""
    with serving(answer) as server, scorer_of(server.url + "/score", **settings) as scorer:
        return scorer.score(given, 5.0)
