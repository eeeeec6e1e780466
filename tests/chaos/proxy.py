"""A TCP proxy that passes bytes on until it is told to lose, change, slow or hold them."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable

Change = Callable[[bytes], bytes | None]
"""What becomes of a chunk of bytes; None cuts the connection in place of passing them on."""

_CHUNK = 1 << 16


def unchanged(data: bytes) -> bytes | None:
    return data


class Proxy:
    """Listens on `port`, and gives each connection one of its own to the target."""

    def __init__(self, target: int) -> None:
        self.requests: Change = unchanged
        self.replies: Change = unchanged
        self.seconds = 0.0
        """How long each chunk takes."""
        self._target = target
        self._connected = threading.Event()
        self._connected.set()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self) -> None:
        """A partition: connections stay and can be made, and nothing passes."""
        self._connected.clear()

    def let_go(self) -> None:
        """Pass on what was held, and what comes."""
        self._connected.set()

    def close(self) -> None:
        self._connected.set()
        for open_socket in [self._listener, *self._sockets]:
            _cut(open_socket)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client = self._listener.accept()[0]
                try:
                    server = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    _cut(client)  # nobody is there
                    continue
                self._sockets += [client, server]
                for source, sink, change in (
                    (client, server, lambda data: self.requests(data)),
                    (server, client, lambda data: self.replies(data)),
                ):
                    source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    threading.Thread(target=self._pass, args=(source, sink, change), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, change: Change) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK):
                if self.seconds:
                    time.sleep(self.seconds)
                self._connected.wait()
                changed = change(data)
                if changed is None:
                    break
                sink.sendall(changed)
        _cut(source)
        _cut(sink)


def _cut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
