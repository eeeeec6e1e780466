"""Which run a command looks into: by name, folder or configuration; and its streams, if they are there."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from services.console.config import ConsoleSettings
from services.console.remains import REPORT, remains
from services.console.resolved import CONFIG, check_overrides
from shared.config import hide_password, load_settings, read_tables
from shared.stream import STREAMS, Streams, connect

RUNS = Path("runs")
URL_VARIABLE = "ROLLSTREAM_REDIS__URL"
LEFT_LOOKS = "`rollstream status`, `queues`, `trace` and `completions`"
"""Those that need no Redis once the run has ended."""


class RunAbsent(ValueError):
    """A run that is not in Redis, or whose Redis is gone: it has ended, was stopped, or never began.

    Args:
    others: the runs that are in this Redis, in words; of no use to whom an ended run's report can be told.
    """

    def __init__(self, message: str, folder: Path, others: str = "") -> None:
        first, *more = remains(folder) or [f"{folder} has no report of an ended run{_others()}"]
        if more:
            words = [first, f"report: {folder / REPORT}", f"{LEFT_LOOKS} still look into it", message]
        else:
            words = [message, others, first]
        super().__init__("; ".join(filter(None, words)))
        self.folder = folder


@dataclass(frozen=True)
class Run:
    """A run whose streams are there to be looked into."""

    streams: Streams
    folder: Path


def find_folder(run: str | None, config: Path | None, overrides: Sequence[str], holding: str) -> Path:
    """The folder of the run with this name, at this path, or of this configuration; by default of the newest.

    Args:
    holding: files that the folder must have, as a pattern. The newest run is the one with the newest of them.

    Raises:
    ValueError: there is none, or it is named twice.
    """
    if config is not None:
        return _configured(run, config, overrides).run.path
    files = _newest_first(holding) if run is None else _files([RUNS / run, Path(run)], holding)
    if not files:
        where = f"no run in {RUNS}/" if run is None else f"neither {RUNS / run} nor {run}"
        raise ValueError(
            f"{where} has {holding}{_others()}; of a run that neither `rollstream up` nor `rollstream demo` "
            "started, give the TOML file with --config"
        )
    return files[0][1]


@contextmanager
def opened(run: str | None, config: Path | None, overrides: Sequence[str]) -> Iterator[Run]:
    """The run while a command looks into it.

    Raises:
    RunAbsent: it is not in its Redis, or that does not answer, also inside the context.
    ValueError: there is no such run, or its Redis refuses.
    """
    if config is not None:
        settings = _configured(run, config, overrides)
        folder = settings.run.path
    else:
        folder = find_folder(run, None, overrides, holding=CONFIG)
        settings = read_settings(folder, overrides)
    name, where = settings.run.name, settings.redis.public_url
    try:
        with connect(settings.redis.url, timeout=5.0) as client:
            client.set_retry(Retry(NoBackoff(), 0))  # a person waits
            streams = Streams(client, name)
            if not _exists(streams):
                raise RunAbsent(f"run {name!r} is not in Redis at {where}", folder, _runs_in(client))
            yield Run(streams, folder)
    except redis.AuthenticationError as error:  # for redis-py it is a connection error
        raise ValueError(
            f"Redis at {where} refuses ({error}): set its URL with the right password in {URL_VARIABLE}"
        ) from error
    except (redis.ConnectionError, redis.TimeoutError) as error:
        silence = f"Redis at {where}, of run {name!r}, does not answer ({error})"
        raise RunAbsent(silence, folder) from error
    except redis.RedisError as error:
        raise ValueError(f"Redis at {where} refuses ({error})") from error


def read_settings(folder: Path, overrides: Sequence[str]) -> ConsoleSettings:
    """What the run in this folder was started with.

    Raises:
    ValueError: what is wrong in it, or in an override of any service's table.
    """
    path = folder / CONFIG
    return _checked(path, _password(path, overrides), overrides)


def _configured(run: str | None, config: Path, overrides: Sequence[str]) -> ConsoleSettings:
    """The run of a configuration, as the environment and the overrides change it."""
    if run is not None:
        raise ValueError(f"--run {run} and --config {config} may name two runs: give one of them")
    return _checked(config, os.environ, overrides)


def _checked(path: Path, environ: Mapping[str, str], overrides: Sequence[str]) -> ConsoleSettings:
    settings = load_settings(ConsoleSettings, path, environ, overrides)
    check_overrides(path, environ, overrides)
    return settings


def _files(folders: Iterable[Path], holding: str) -> list[tuple[Path, Path]]:
    """The matching files and their folders."""
    return [(file, folder) for folder in folders for file in folder.glob(holding)]


def _newest_first(holding: str) -> list[tuple[Path, Path]]:
    files = _files(RUNS.glob("*"), holding)
    return sorted(files, key=lambda found: found[0].stat().st_mtime, reverse=True)


def _others() -> str:
    """The newest runs that --run finds, in words; nothing if there is none."""
    names = [folder.name for _, folder in _newest_first(CONFIG)[:3]]
    return f"; the newest runs that --run finds are {', '.join(names)}" if names else ""


def _password(config: Path, overrides: Sequence[str]) -> dict[str, str]:
    """The run's Redis URL as the environment has it, with the password that a run's file does not hold."""
    whole = os.environ.get(URL_VARIABLE, "")
    hidden = read_tables(config, {}, overrides).get("redis", {}).get("url")
    return {URL_VARIABLE: whole} if whole and hide_password(whole) == hidden else {}


def _exists(streams: Streams) -> bool:
    return bool(streams.client.exists(*(streams.key(name) for name in (*STREAMS, "events", "dead"))))


def _runs_in(client: "redis.Redis") -> str:
    """The runs that have keys in this Redis, in words."""
    at_work: dict[str, bool] = {}
    for key in client.scan_iter(match="rollstream:{*}:*", count=1000):
        if found := re.match(r"rollstream:\{(.+?)\}:(worker:)?", key.decode()):
            at_work[found[1]] = at_work.get(found[1], False) or bool(found[2])
    if not at_work:
        return "no run is in it"
    names = [f"{name} ({'at work' if alive else 'not at work'})" for name, alive in sorted(at_work.items())]
    return f"in it are {', '.join(names)}"
