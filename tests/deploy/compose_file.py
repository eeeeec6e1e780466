"""The compose files as Compose reads them: variables replaced from an environment, merge keys resolved."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
BASE = ROOT / "docker-compose.yml"
GPU = ROOT / "docker-compose.gpu.yml"

SECRETS = {
    "REDIS_PASSWORD": "a-redis-password-of-the-tests",
    "ROLLSTREAM_TOKEN": "a-token-of-the-tests",
    "ROLLSTREAM_REWARD_TOKEN": "another-token-of-the-tests",
}

_VARIABLE = re.compile(r"\$\$|\$\{(?P<name>\w+)(?:(?P<operator>:?[-?])(?P<word>[^}]*))?\}")


def load(path: Path, environ: Mapping[str, str] = SECRETS) -> dict[str, Any]:
    """The file with its variables replaced.

    Raises:
    LookupError: a required variable is not set.
    """
    document: dict[str, Any] = _interpolated(yaml.safe_load(path.read_text()), environ)
    return document


def environment(service: Mapping[str, Any], environ: Mapping[str, str] = SECRETS) -> dict[str, str]:
    """A service's variables; one without a value is passed on if it is set outside."""
    given = service.get("environment", {})
    return {
        name: str(environ[name] if value is None else value)
        for name, value in given.items()
        if value is not None or name in environ
    }


def _interpolated(node: Any, environ: Mapping[str, str]) -> Any:
    if isinstance(node, dict):
        return {key: _interpolated(value, environ) for key, value in node.items()}
    if isinstance(node, list):
        return [_interpolated(value, environ) for value in node]
    if not isinstance(node, str):
        return node
    assert not re.search(r"(?<!\$)(?:\$\$)*\$(?![{$])", node), f"write ${{NAME}} or $$: {node}"
    return _VARIABLE.sub(lambda match: _value(match, environ), node)


def _value(match: re.Match[str], environ: Mapping[str, str]) -> str:
    name, operator, word = match["name"], match["operator"], match["word"]
    if name is None:
        return "$"
    value = environ.get(name)
    missing = value is None or (operator in (":-", ":?") and not value)
    if not missing:
        return str(value)
    if operator in (":?", "?"):
        raise LookupError(f"{name} {word}")
    assert operator in (":-", "-"), f"{name} has no default and is not required"
    return str(word)
