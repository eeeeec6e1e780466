"""Small HTTP servers that take weights as rollout servers do, and keep the contract's books only."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import safetensors.torch
import torch

from shared.stream import Streams
from shared.weights import WeightManifest
from shared.workers import Heartbeat

TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4)}


class Server:
    """Takes updates as a rollout server does; `refuse` makes it answer 500."""

    def __init__(self, streams: Streams, id: str, refuse: bool = False) -> None:
        self.refuse = refuse
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.requests = 0
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
                with suppress(BrokenPipeError):  # who asked has given up
                    self.wfile.write(answer)

            do_GET = do_POST = do_PUT = handle_any

            def log_message(self, *arguments: Any) -> None:
                """Quiet."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self.heartbeat = Heartbeat(streams, "rollout", id, self.facts)
        self.heartbeat.start()

    def facts(self) -> dict[str, Any]:
        return {"url": self.url, "version": self.version, "digest": self.digest, "learner_epoch": 1}

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        self.requests += 1
        self.goes_on.wait(timeout=30)
        if self.refuse:
            return 500, b"no"
        if method == "PUT":
            assert len(body) == self.manifest.parts[int(path.rsplit("/", 1)[1])].nbytes
            self.received |= safetensors.torch.load(body)
            return 204, b""
        if method == "POST" and path.endswith("/commit"):
            self.version, self.digest = self.manifest.version, self.manifest.digest
            self.heartbeat.beat()
        elif method == "POST":
            self.manifest = WeightManifest.model_validate_json(body)
        status = {"version": self.version, "digest": self.digest, "learner_epoch": 1, "state": "serving"}
        return 200, json.dumps(status).encode()

    def stop(self) -> None:
        self.goes_on.set()
        self.heartbeat.stop()
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
