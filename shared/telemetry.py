"""What a run tells: log lines on standard error, metrics as JSON lines."""

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any


def set_up_logging(service: str) -> logging.Logger:
    """One line per event on standard error: time, level, service, text."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)s {service} %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("rollstream")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
    return logger


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
