"""What a run tells: log lines on standard error, metrics as JSON lines."""

import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shared.config import fail


def set_up_logging(service: str) -> logging.Logger:
    """One line per event on standard error: time, level, service, text; as JSON if `ROLLSTREAM_LOG` says so.

    Ends the process if it says anything else.
    """
    form = os.environ.get("ROLLSTREAM_LOG", "text")
    if form not in ("text", "json"):
        fail(f"ROLLSTREAM_LOG is {form!r}; it may be 'text' or 'json'")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLog(service) if form == "json" else TextLog(service))
    logger = logging.getLogger("rollstream")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
    return logger


class TextLog(logging.Formatter):
    """Lines for people. What others wrote, such as a scorer's cause, can end none and begin none:
    of control characters the escapes are shown, and the lines of a traceback are indented."""

    def __init__(self, service: str) -> None:
        super().__init__(f"%(asctime)s %(levelname)s {service} %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        return _escaped(super().formatMessage(record))

    def formatException(self, *arguments: Any) -> str:
        return "\n".join(f"    {_escaped(line)}" for line in super().formatException(*arguments).split("\n"))


class JsonLog(logging.Formatter):
    """One JSON object per line: at (UTC), level, service, id (of the prompt, if there is one), text."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        row = {"at": at, "level": record.levelname, "service": self._service, "text": text}
        if found := _ID.match(text):
            row["id"] = found["id"]
        if record.exc_info:
            row["traceback"] = self.formatException(record.exc_info)
        return json.dumps(row)


_ID = re.compile(r"id=(?P<id>\S+)")


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class JsonLines:
    """Appends one JSON object per line, at once, so that a reader never waits for a buffer."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._file = path.open("ab", buffering=0)

    def write(self, row: Mapping[str, Any]) -> None:
        """Raises:
        ValueError: the disk is full, or cannot be written; the message says what to do.
        """
        line = json.dumps({"at": round(time.time(), 3), **row}, ensure_ascii=False) + "\n"
        try:
            self._append(line.encode())
        except OSError as error:
            raise ValueError(
                f"{self._path} cannot be written: {error}. Make room, and go on from the last checkpoint "
                "with --resume"
            ) from error

    def _append(self, line: bytes) -> None:
        while line:  # a disk that fills up takes a part
            line = line[self._file.write(line) :]

    def close(self) -> None:
        self._file.close()


def whole_lines(path: Path) -> Iterator[str]:
    """The lines of a file of JSON lines, without the last one if a crash or a full disk has cut it off."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line.decode()


def keep_lines(path: Path, wanted: Callable[[Any], bool]) -> None:
    """Rewrite a file of JSON lines with the wanted rows only; whole, or left as it was."""
    if not path.exists():
        return
    lines = [line for line in whole_lines(path) if wanted(json.loads(line))]
    partial = path.with_suffix(".partial")
    partial.write_text("".join(lines), encoding="utf-8")
    partial.replace(path)
