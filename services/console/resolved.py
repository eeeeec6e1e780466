"""The configuration of the whole run, as its services themselves read it.

The console knows no other service's tables. It asks each one to validate its own with `--print-config`, so a
mistake anywhere is told before anything starts.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from services.console.config import ConsoleConfig, ConsoleSettings
from services.console.toml import to_toml
from shared.config import ENV_PREFIX, RunConfig, hide_password, load_settings

SERVICES = ("rollout", "reward", "learner")
CONFIG = "config.toml"
HEAD = "# What this run was started with, everything filled in; without the password of Redis.\n\n"


@dataclass(frozen=True)
class Resolved:
    """What a config file and its overrides come to."""

    run: RunConfig
    redis_url: str
    console: ConsoleConfig
    tables: dict[str, dict[str, Any]]
    """Every table with its defaults filled in, as JSON values."""
    arguments: list[str]
    """Command-line arguments that make a service read the same."""

    def public_tables(self) -> dict[str, dict[str, Any]]:
        """The tables without the password that the Redis URL may hold."""
        return self.tables | {"redis": {"url": hide_password(self.redis_url)}}

    def save(self) -> Path:
        """Write `config.toml` into the run's folder: what it was started with, for people and commands."""
        path = self.run.path / CONFIG
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(HEAD + to_toml(self.public_tables()), encoding="utf-8")
        return path


def resolve(config: Path, overrides: Sequence[str]) -> Resolved:
    """Validate all tables, each by the service it belongs to.

    Raises:
    ValueError: what is wrong, one line per mistake.
    """
    settings = load_settings(ConsoleSettings, config, os.environ, overrides)
    tables: dict[str, dict[str, Any]] = settings.model_dump(mode="json")
    arguments = ["--config", str(config), *overrides]
    tables |= _own_tables(SERVICES, arguments, os.environ)
    return Resolved(settings.run, settings.redis.url, settings.console, tables, arguments)


def check_overrides(config: Path, environ: Mapping[str, str], overrides: Sequence[str]) -> None:
    """Let the services check overrides of their tables, of which the commands that look need none.

    A service whose code is not here, as in the console's container, cannot be asked.

    Raises:
    ValueError: what is wrong, one line per mistake.
    """
    named = [
        service
        for service in SERVICES
        if any(word.startswith(f"--{service}.") for word in overrides) and find_spec(f"services.{service}")
    ]
    others = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}
    _own_tables(named, ["--config", str(config), *overrides], {**others, **environ})


def _own_tables(
    services: Sequence[str], arguments: Sequence[str], environ: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """The table of each service as it reads it itself, defaults filled in, as JSON values.

    Raises:
    ValueError: what is wrong, one line per mistake.
    """
    asked = {
        service: subprocess.Popen(
            [sys.executable, "-m", f"services.{service}", *arguments, "--print-config"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environ,
        )
        for service in services
    }
    answers = {service: (process.communicate(), process.returncode) for service, process in asked.items()}
    mistakes = [complaint for (_, complaint), status in answers.values() if status]
    if mistakes:
        lines = [line for complaint in mistakes for line in complaint.strip().splitlines()]
        raise ValueError("\n".join(dict.fromkeys(line.removeprefix("error: ") for line in lines)))
    return {service: json.loads(answer)[service] for service, ((answer, _), _) in answers.items()}
