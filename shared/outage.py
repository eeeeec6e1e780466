"""Waiting for a Redis that does not answer."""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

import redis

T = TypeVar("T")
log = logging.getLogger("rollstream.redis")

_PAUSE_SECONDS = 0.5


def insist(step: Callable[[], T], patience: float, on_failure: Callable[[], None]) -> T:
    """The result of `step`, tried again while Redis does not answer. Only for steps that may be repeated.

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
        except (redis.ConnectionError, redis.TimeoutError) as error:
            on_failure()
            if time.monotonic() > deadline:
                raise ValueError(f"Redis has not answered for {patience:.0f} s: {error}") from error
            if not told:
                log.warning("Redis does not answer (%s); waiting for it", error)
                told = True
            time.sleep(_PAUSE_SECONDS)
