"""One TOML file per run, one table per service; each service reads the shared tables and its own.

Sources, weakest first: defaults, the file, the environment (`ROLLSTREAM_LEARNER__KL_COEF=0.02`), the command
line (`--learner.kl_coef 0.02`). Tables may hold tables: `--learner.lora.rank 8`. An unknown table or key is
an error with a suggestion.
"""

import argparse
import difflib
import json
import os
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

TABLES = ("run", "model", "redis", "rollout", "reward", "learner", "console")
ENV_PREFIX = "ROLLSTREAM_"
HIDDEN = "***"
"""Stands for a password wherever people may read it."""


class Table(BaseModel):
    """A table of the file. Frozen, and closed to unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class RunConfig(Table):
    name: str = Field(default="default", pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    """Names the run's folder and its Redis keys."""
    dir: Path = Path("runs")
    """Everything a run writes lies under `dir/name`."""
    seed: int = 0

    @property
    def path(self) -> Path:
        return self.dir / self.name


class ModelConfig(Table):
    path: Path
    """A local Hugging Face model folder with its tokenizer: the policy to start from."""


class RedisConfig(Table):
    url: str = Field(default="redis://127.0.0.1:6379/0", pattern=r"^(redis|rediss|unix)://\S+$")
    """`redis://[:password@]host:port/db`, or `rediss://` for TLS."""

    @property
    def public_url(self) -> str:
        return hide_password(self.url)

    @field_validator("url")
    @classmethod
    def _password_is_not_hidden(cls, url: str) -> str:
        if HIDDEN in url:
            raise ValueError(
                f"the password is hidden as {HIDDEN}, as in all that rollstream writes: set the whole URL in "
                "the environment, as ROLLSTREAM_REDIS__URL"
            )
        return url


class Settings(BaseModel):
    """The tables that every service reads. A service adds its own table."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run: RunConfig = RunConfig()
    model: ModelConfig
    redis: RedisConfig = RedisConfig()


def hide_password(url: str) -> str:
    """A Redis URL without its password, which stands before the host or among the options of the URL."""
    url = re.sub(r"^(\w+://[^:/?#]*):[^/?#]*@", rf"\1:{HIDDEN}@", url)
    return re.sub(r"([?&]password=)[^&#]*", rf"\1{HIDDEN}", url)


def fail(message: str) -> NoReturn:
    """End the process with one sentence for the user."""
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(2)


S = TypeVar("S", bound=Settings)
Givers = dict[tuple[str, ...], str]
"""For each `table.key` that the file does not decide, the option or environment variable that does."""


def parse_command_line(kind: type[S], program: str, argv: Sequence[str] | None = None) -> S:
    """Settings from `--config FILE` and overrides; with `--print-config`, print them as JSON and exit.

    Ends the process with a clear sentence and status 2 on bad input.
    """
    parser = argparse.ArgumentParser(program, allow_abbrev=False)
    parser.add_argument("--config", type=Path, required=True, help="TOML file of the run")
    parser.add_argument(
        "--print-config", action="store_true", help="print the resolved tables as JSON and exit"
    )
    known, overrides = parser.parse_known_args(argv)
    try:
        settings = load_settings(kind, known.config, os.environ, overrides)
    except ValueError as error:
        fail(str(error))
    if known.print_config:
        print(settings.model_dump_json())
        raise SystemExit(0)
    return settings


def load_settings(kind: type[S], path: Path, environ: Mapping[str, str], overrides: Sequence[str] = ()) -> S:
    """Merge all sources and validate the tables that `kind` has.

    Raises:
    ValueError: what is wrong, where, and what was probably meant.
    """
    merged, givers = _merge(path, environ, overrides)
    tables = {name: table for name, table in merged.items() if name in kind.model_fields}
    try:
        return kind.model_validate(tables)
    except ValidationError as error:
        raise ValueError(
            "\n".join(_explain(kind, _giver(item["loc"], givers, path), item) for item in error.errors())
        ) from error


def read_tables(
    path: Path, environ: Mapping[str, str], overrides: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """The tables of the file with environment and command line laid over it, not yet validated.

    Raises:
    ValueError: an unreadable file, or an unknown table.
    """
    return _merge(path, environ, overrides)[0]


def _merge(
    path: Path, environ: Mapping[str, str], overrides: Sequence[str]
) -> tuple[dict[str, dict[str, Any]], Givers]:
    """The tables, and what gave each key that is not the file's."""
    givers: Givers = {}
    try:
        merged: dict[str, dict[str, Any]] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"config file {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"config file {path} is not valid TOML: {error}") from error
    for name, table in merged.items():
        _check_table(name, f"config file {path}")
        if not isinstance(table, dict):
            raise ValueError(f"config file {path}: {name!r} must be a table, written [{name}]")
    for variable, text in environ.items():
        path_in_file = variable.removeprefix(ENV_PREFIX).lower().split("__")
        if variable.startswith(ENV_PREFIX) and len(path_in_file) > 1:
            _override(merged, givers, path_in_file, text, f"environment variable {variable}")
    for option, text in _options(overrides):
        path_in_file = option.split(".")
        if len(path_in_file) < 2:
            raise ValueError(f"option --{option} is unknown; overrides have the form --table.key value")
        _override(merged, givers, path_in_file, text, f"option --{option}")
    return merged, givers


def _override(
    merged: dict[str, dict[str, Any]], givers: Givers, keys: Sequence[str], text: str, where: str
) -> None:
    """Put a value at `table.key`, or deeper, as in `learner.lora.rank`."""
    _check_table(keys[0], where)
    table: dict[str, Any] = merged
    for key in keys[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise ValueError(f"{where}: {key!r} is a value in the config file, not a table")
    table[keys[-1]] = _value(text)
    givers[tuple(keys)] = where


def _giver(location: Sequence[str | int], givers: Givers, path: Path) -> str:
    """What gave a value, or the table that it lies in: the last that did. By default the file."""
    given = [where for keys, where in givers.items() if tuple(location[: len(keys)]) == keys]
    return given[-1] if given else f"config {path}"


def _options(overrides: Sequence[str]) -> list[tuple[str, str]]:
    pairs, words = [], list(overrides)
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            raise ValueError(f"argument {word!r} was not expected; overrides have the form --table.key value")
        option, separator, text = word[2:].partition("=")
        if not separator:
            if not words:
                raise ValueError(f"option --{option} has no value")
            text = words.pop(0)
        pairs.append((option, text))
    return pairs


def _value(text: str) -> Any:
    """A TOML array or inline table where the text is one; else the text itself, which pydantic converts."""
    if not text.startswith(("[", "{")):
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _check_table(name: str, where: str) -> None:
    if name not in TABLES:
        raise ValueError(f"{where}: unknown table {name!r}.{suggestion(name, TABLES)}")


def suggestion(word: str, known: Sequence[str]) -> str:
    """The known word that was probably meant, or all of them; a sentence with a space before it."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else f" Known: {', '.join(sorted(known))}."


def _explain(kind: type[Settings], giver: str, item: Any) -> str:
    where = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        probably = suggestion(str(item["loc"][-1]), _known_keys(kind, item["loc"][:-1]))
        return f"{giver}: unknown key {where!r}.{probably}"
    if item["type"] == "missing":
        return f"{giver}: {where!r} is required"
    place = ": ".join(filter(None, (giver, where)))
    if not isinstance(item["input"], Mapping | Sequence) or isinstance(item["input"], str):
        # A URL may hold a password. A table or list is long, and the sentence names what matters of it.
        seen = HIDDEN if where.endswith("url") else json.dumps(item["input"], default=str)
        place += f" = {seen}"
    return f"{place}: {item['msg'].removeprefix('Value error, ')}"


def _known_keys(kind: type[BaseModel], location: Sequence[str | int]) -> list[str]:
    """The keys that the table at `location` may have."""
    tables = [kind]
    for part in location:
        fields = [table.model_fields[part] for table in tables if part in table.model_fields]
        if fields:  # else the part is a position in a list, or says which of several kinds of table is meant
            tables = [table for field in fields for table in _tables_in(field.annotation)]
    return sorted({key for table in tables for key in table.model_fields})


def _tables_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [table for argument in get_args(annotation) for table in _tables_in(argument)]
