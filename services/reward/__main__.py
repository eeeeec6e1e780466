"""`python -m services.reward --config run.toml [--table.key value]`"""

import ipaddress
import os
import signal
import socket
import sys
from collections.abc import Sequence

from services.reward.config import TOKEN_VARIABLE, WATCH_TOKEN_VARIABLE, RewardSettings
from shared.auth import token_from_environment
from shared.config import fail, parse_command_line


def main(argv: Sequence[str] | None = None) -> None:
    settings = parse_command_line(RewardSettings, "python -m services.reward", argv)
    try:
        serve(settings)
    except ValueError as error:
        fail(str(error))


def serve(settings: RewardSettings) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
    ValueError: the address, the token or Redis is not as it must be.
    """
    # Imported here, so that --help and --print-config answer at once.
    import uvicorn

    from services.reward.app import create_app
    from services.reward.core import ScoringCore
    from services.reward.metrics import Metrics
    from services.reward.worker import Worker
    from shared.outage import insist_at_start
    from shared.stream import Streams, check_server, connect
    from shared.telemetry import set_up_logging

    config = settings.reward
    log = set_up_logging("reward")
    token, watch_token = (
        token_from_environment(variable) if os.environ.get(variable) else None
        for variable in (TOKEN_VARIABLE, WATCH_TOKEN_VARIABLE)
    )
    listener = bind(config.host, config.port, token)
    url = address(listener)
    client = connect(settings.redis.url)
    check_server(client, settings.redis.url)
    streams = Streams(client, settings.run.name)
    insist_at_start(streams.ensure_groups)
    core = ScoringCore(config)
    metrics = Metrics()
    worker = Worker(streams, core, config, metrics, lambda: {"url": url})
    server = uvicorn.Server(
        uvicorn.Config(
            create_app(config, core, worker, streams, token, metrics, watch_token),
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=3,
        )
    )
    # uvicorn raises the signal that stopped it once more when all is closed.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(int(worker.failed)))
    log.info("listening on %s, scoring run %s with %s", url, settings.run.name, ", ".join(config.scorers))
    try:
        server.run(sockets=[listener])
    finally:
        core.close()


def bind(host: str, port: int, token: str | None) -> socket.socket:
    """A listening socket, made before anything else starts.

    Raises:
    ValueError: the address cannot be had, or would be open to others without a token.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, _, _, _, where = found[0]
        if token is None and not ipaddress.ip_address(where[0]).is_loopback:
            raise ValueError(
                f"[reward] host {host!r} is open to other machines; set {TOKEN_VARIABLE} to a secret of 16 "
                "or more characters, or listen on 127.0.0.1"
            )
        listener = socket.create_server(where[:2], family=family)
    except OSError as error:
        raise ValueError(
            f"cannot listen on {host}:{port}: {error.strerror}. Set [reward] host and port to a free one"
        ) from error
    # Connections inherit this. asyncio leaves it out here, and an answer's body waits 40 ms for the client
    # to acknowledge its head.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def address(listener: socket.socket) -> str:
    """The URL under which others reach `listener`."""
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = socket.gethostname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


if __name__ == "__main__":
    main()
