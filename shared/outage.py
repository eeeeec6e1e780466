"""Waiting for a Redis that does not answer, or cannot write."""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

import redis

T = TypeVar("T")
log = logging.getLogger("rollstream.redis")

START_SECONDS = 5.0
"""How long a service that starts waits for a Redis that is itself just starting."""
_PAUSE_SECONDS = 0.5
_CANNOT_WRITE = ("OOM", "MISCONF", "READONLY", "MASTERDOWN")
"""Answers of a Redis that is full, whose disk is, or that has become a replica: also inside a script's."""
_PASSING = (
    redis.ConnectionError,
    redis.TimeoutError,
    redis.OutOfMemoryError,  # the text of this one and of those below has lost the word
    redis.ReadOnlyError,
    redis.exceptions.MasterDownError,
)


def is_outage(error: redis.RedisError) -> bool:
    """Whether the step that failed may succeed later, unchanged."""
    if isinstance(error, _PASSING):
        return True
    return any(word in str(error) for word in _CANNOT_WRITE)


def insist_at_start(step: Callable[[], T]) -> T:
    """As `insist`, of the steps that a service begins with."""
    return insist(step, START_SECONDS, lambda: None)


def insist(step: Callable[[], T], patience: float, on_failure: Callable[[], None]) -> T:
    """The result of `step`, tried again while Redis cannot be used. Only for steps that may be repeated.

    Args:
        patience: seconds after which the outage is final.
        on_failure: called after each failed try.

    Raises:
    ValueError: Redis has not answered for that long.
    """
    deadline, told = time.monotonic() + patience, False
    while True:
        try:
            return step()
        except redis.RedisError as error:
            if not is_outage(error):
                raise
            on_failure()
            if time.monotonic() > deadline:
                raise ValueError(f"Redis has not answered for {patience:.0f} s: {error}") from error
            if not told:
                log.warning("Redis cannot be used (%s); waiting for it", error)
                told = True
            time.sleep(_PAUSE_SECONDS)
