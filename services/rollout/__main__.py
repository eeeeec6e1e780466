"""`python -m services.rollout --config run.toml [--table.key value]`"""

import asyncio
import errno
import os
import signal
import socket
import sys
from collections.abc import Sequence
from urllib.parse import urlsplit

from services.rollout.config import RolloutConfig, RolloutSettings
from services.rollout.engine import EngineDead, ModelBroken
from services.rollout.weight_files import ModelShape
from shared.auth import token_from_environment
from shared.config import fail, parse_command_line
from shared.outage import insist_at_start
from shared.stream import Streams, check_server, connect
from shared.telemetry import set_up_logging


def main(argv: Sequence[str] | None = None) -> None:
    settings = parse_command_line(RolloutSettings, "python -m services.rollout", argv)
    set_up_logging("rollout")
    _set_environment(settings.rollout)
    try:
        token = token_from_environment()
        client = connect(settings.redis.url)
        check_server(client, settings.redis.url)
        listener = bind(settings.rollout)
        model = ModelShape(settings.model.path)
        streams = Streams(client, settings.run.name)
        insist_at_start(streams.ensure_groups)
    except ValueError as error:
        fail(str(error))
    url = settings.rollout.url or reachable_url(listener, settings.redis.url)
    client.close()  # the engine's process must not inherit the connection; it reopens by itself
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    from services.rollout.service import start  # imports torch and vLLM, for seconds

    try:
        service = start(settings, model, streams, url, token)
    except ValueError as error:
        fail(str(error))
    try:
        asyncio.run(service.run(listener))
    except (EngineDead, ModelBroken) as error:
        fail(str(error))
    finally:
        service.close()
    # Taking torch and vLLM apart, object by object, takes seconds and saves nothing.
    sys.stderr.flush()
    os._exit(0)


def _set_environment(config: RolloutConfig) -> None:
    """What torch and vLLM read when they are imported, here and in the engine's process."""
    os.environ["OMP_NUM_THREADS"] = str(config.threads)
    # Threads that spin while they wait make two of them a hundred times slower on cores that others use too.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")


def bind(config: RolloutConfig) -> socket.socket:
    """Take the port before the long start, so that a clash is told at once."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Connections inherit this. asyncio leaves it out here, and an answer's body waits 40 ms for the client
    # to acknowledge its head.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listener.bind((config.host, config.port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ValueError(
                f"port {config.port} on {config.host} is in use; set [rollout] port to another (0 takes any)"
            ) from error
        raise ValueError(f"cannot listen on {config.host}:{config.port}: {error.strerror}") from error
    return listener


def reachable_url(listener: socket.socket, redis_url: str) -> str:
    """Where others find this server. A wildcard address is replaced by the one that Redis sees us under."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        redis = urlsplit(redis_url)
        name, number = redis.hostname or "127.0.0.1", redis.port or 6379
        family, kind, _, _, address = socket.getaddrinfo(name, number, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # a datagram socket: nothing is sent
            host = probe.getsockname()[0]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


if __name__ == "__main__":
    main()
