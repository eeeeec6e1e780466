"""A circuit breaker: a server that keeps failing is left alone for a while."""

import time
from collections.abc import Callable


class Breaker:
    """Opens after `failures` failed calls in a row; after `seconds` one call may try. For one thread."""

    def __init__(self, failures: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._failures = failures
        self._seconds = seconds
        self._clock = clock
        self._in_a_row = 0
        self._closed_to = 0.0

    def seconds_left(self) -> float:
        """How long no call may be made; 0 lets this caller make one."""
        if self._in_a_row < self._failures:
            return 0.0
        left = self._closed_to - self._clock()
        if left > 0:
            return left
        self._closed_to = self._clock() + self._seconds  # the others wait for what this one call shows
        return 0.0

    def succeeded(self) -> None:
        self._in_a_row = 0

    def failed(self) -> None:
        self._in_a_row += 1
        self._closed_to = self._clock() + self._seconds
