"""Publishing weights to rollout servers: here to small HTTP servers that keep the contract's books only.

The real server takes real pushes in tests/rollout and tests/e2e.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import safetensors.torch
import torch

from services.learner import weight_sync
from services.learner.weight_sync import Update, WeightPublisher
from shared.stream import Streams
from shared.weights import WeightManifest, sha256
from shared.workers import Heartbeat

TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4)}


class Server:
    """Takes updates as a rollout server does; `refuse` makes it answer 500."""

    def __init__(self, streams: Streams, id: str, refuse: bool = False) -> None:
        self.refuse = refuse
        self.version: int | None = None
        self.digest: str | None = None
        self.manifest: WeightManifest
        self.received: dict[str, torch.Tensor] = {}
        self.authorisations: set[str | None] = set()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def handle_any(self) -> None:
                server.authorisations.add(self.headers["Authorization"])
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, answer = server.answer(self.command, self.path, body)
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_POST = do_PUT = handle_any

            def log_message(self, *arguments: Any) -> None:
                """Quiet."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,))
        self._thread.start()
        url = f"http://127.0.0.1:{self._http.server_address[1]}"
        facts = lambda: {"url": url, "version": self.version, "digest": self.digest}  # noqa: E731
        self._heartbeat = Heartbeat(streams, "rollout", id, facts)
        self._heartbeat.start()

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        if self.refuse:
            return 500, b"no"
        if method == "PUT":
            assert len(body) == self.manifest.parts[int(path.rsplit("/", 1)[1])].nbytes
            self.received |= safetensors.torch.load(body)
            return 204, b""
        if method == "POST" and path.endswith("/commit"):
            self.version, self.digest = self.manifest.version, self.manifest.digest
        elif method == "POST":
            self.manifest = WeightManifest.model_validate_json(body)
        status = {"version": self.version, "digest": self.digest, "learner_epoch": 1, "state": "serving"}
        return 200, json.dumps(status).encode()

    def stop(self) -> None:
        self._heartbeat.stop()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


@contextmanager
def serving(*servers: Server) -> Iterator[None]:
    try:
        yield
    finally:
        for server in servers:
            server.stop()


@pytest.fixture
def publisher(streams: Streams) -> Iterator[WeightPublisher]:
    made = WeightPublisher(streams, "the-token-of-this-run", learner_epoch=1)
    yield made
    made.close()


def wait_until(publisher: WeightPublisher, done: Any) -> None:
    pause = threading.Event()
    for _ in range(400):
        publisher.tend()
        if done():
            return
        pause.wait(0.05)
    raise AssertionError("not within 20 seconds")


def test_every_live_server_has_the_weights_when_publish_returns(
    streams: Streams, publisher: WeightPublisher
) -> None:
    first, second = Server(streams, "r1"), Server(streams, "r2")
    with serving(first, second):
        publisher.publish(TENSORS, version=3)
    for server in (first, second):
        assert server.version == 3
        assert server.authorisations == {"Bearer the-token-of-this-run"}
        assert server.received.keys() == TENSORS.keys()
        assert all(torch.equal(server.received[name], TENSORS[name]) for name in TENSORS)


def test_a_failing_server_holds_up_nobody_and_is_tried_again(
    streams: Streams, publisher: WeightPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = Server(streams, "r1"), Server(streams, "r2", refuse=True)
    with serving(good, bad):
        publisher.publish(TENSORS, version=1)
        assert (good.version, bad.version) == (1, None)
        kinds = {entry.fields["kind"]: entry.fields["text"] for entry in streams.tail("events", 20)}
        assert "answered 500: no" in kinds["push_failed"]
        bad.refuse = False
        wait_until(publisher, lambda: bad.version == 1)


def test_a_server_that_joins_later_gets_the_current_weights(
    streams: Streams, publisher: WeightPublisher
) -> None:
    publisher.publish(TENSORS, version=5)
    late = Server(streams, "late")
    with serving(late):
        wait_until(publisher, lambda: late.version == 5)


def test_large_models_travel_in_several_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_sync, "PART_BYTES", 30)
    update = Update(TENSORS, version=1, learner_epoch=1)
    assert [tensor.part for tensor in update.manifest.tensors] == [0, 1]
    assert [part.sha256 for part in update.manifest.parts] == [sha256([data]) for data in update.parts]
