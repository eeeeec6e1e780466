"""What a run tells: log lines on standard error, metrics as JSON lines."""

import json
import logging
import sys
import time
from collections.abc import Mapping
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
