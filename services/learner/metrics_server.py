"""Shows the learner's metrics over HTTP: the only door that the learner has, and only if asked for."""

import threading
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from shared.auth import is_authorised


class MetricsServer:
    """`GET /metrics` from a thread of its own, for those who have the run's token."""

    def __init__(self, host: str, port: int, token: str, registry: CollectorRegistry) -> None:
        """Raises:
        ValueError: the address cannot be had.
        """
        page = make_wsgi_app(registry)

        def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
            if environ["PATH_INFO"] != "/metrics":
                return _refuse(start_response, HTTPStatus.NOT_FOUND)
            if not is_authorised(environ.get("HTTP_AUTHORIZATION"), token):
                return _refuse(start_response, HTTPStatus.UNAUTHORIZED)
            return page(environ, start_response)

        try:
            self._server = make_server(host, port, answer, ThreadingWSGIServer, _Quiet)
        except OSError as error:
            raise ValueError(
                f"cannot listen on {host}:{port}: {error.strerror}; set [learner] metrics_port to a free port"
            ) from error
        self.url = f"http://{host}:{self._server.server_port}/metrics"
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Quiet(WSGIRequestHandler):
    def log_message(self, *arguments: Any) -> None:
        """Scrapes are not worth a line each."""


def _refuse(start_response: Callable[..., Any], status: HTTPStatus) -> Sequence[bytes]:
    start_response(f"{status.value} {status.phrase}", [("Content-Type", "text/plain")])
    return [status.phrase.encode()]
