"""How many prompts a server answers at once: additive increase, multiplicative decrease (AIMD).

Too few leave the engine idle; too many wait inside it, where no other server can take them and where they
grow stale, or push one another out of its cache. The bound between the two moves with the lengths of prompts
and completions, so it is felt for all the time.

Source: D. Chiu and R. Jain, "Analysis of the increase and decrease algorithms for congestion avoidance in
computer networks", 1989; the slow start is that of TCP (RFC 5681).
"""

from services.rollout.engine import EngineLoad

FIRST = 8
DECREASE = 0.75


class Concurrency:
    """The limit. It has no clock: each observation stands for an interval of the same length."""

    def __init__(self, bound: int) -> None:
        """
        Args:
            bound: what the limit never exceeds, at least 1.
        """
        assert bound > 0
        self._bound = bound
        self._doubling = True
        self.limit = min(FIRST, bound)
        """Prompts to answer at once."""

    def observe(self, load: EngineLoad, most_in_flight: int, was_full: bool) -> None:
        """Draw the conclusion from one interval.

        Args:
            most_in_flight: prompts that were being answered at once, at any time of it.
            was_full: the limit, and nothing else, has kept prompts out meanwhile.
        """
        if most_in_flight > self.limit:
            return  # the last decrease has not had its effect yet
        if not load.steps:
            return  # nothing is known of this interval
        if load.is_too_much:
            self._doubling = False
            self.limit = max(1, int(most_in_flight * DECREASE))
        elif was_full and load.has_room and not load.waiting:
            self.limit = min(self._bound, 2 * self.limit if self._doubling else self.limit + 1)
