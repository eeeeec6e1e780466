"""What a run tells: log lines on standard error, metrics as JSON lines."""

import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
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
    """Appends one JSON object per line and flushes it, so that a reader never waits for a buffer."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")

    def write(self, row: Mapping[str, Any]) -> None:
        self._file.write(json.dumps({"at": round(time.time(), 3), **row}, ensure_ascii=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def keep_lines(path: Path, wanted: Callable[[Any], bool]) -> None:
    """Rewrite a file of JSON lines with the wanted rows only; whole, or left as it was."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        lines = [line for line in file if wanted(json.loads(line))]
    partial = path.with_suffix(".partial")
    partial.write_text("".join(lines), encoding="utf-8")
    partial.replace(path)
