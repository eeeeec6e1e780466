"""How many of the groups that the learner waits for die: when people are told, and when the run ends."""

import logging
from collections import deque

from shared.entry import Entry
from shared.stream import Streams

ALARM = 0.25
"""Share of dead groups from which on people are told."""
LIMIT = 0.75
"""Share above which the run ends: what is left of the prompts is no longer what it was to be trained on."""

log = logging.getLogger("rollstream.feed")


class Mortality:
    """Of the newest groups that arrived or died, the share that died."""

    def __init__(self, streams: Streams, credits: int) -> None:
        self._streams = streams
        self._in_a_row = 0
        self._most_in_a_row = 2 * credits
        self._died: deque[bool] = deque(maxlen=4 * credits)
        self._alarmed = False

    def arrived(self) -> None:
        self._in_a_row = 0
        self._died.append(False)

    def died(self, letter: Entry) -> None:
        """Raises:
        ValueError: too many did; the message has the last cause.
        """
        self._in_a_row += 1
        self._died.append(True)
        dead, groups = sum(self._died), len(self._died)
        last = f"the last one by the {letter.fields.get('stage')} service: {letter.fields.get('cause')}"
        if self._in_a_row > self._most_in_a_row:
            raise ValueError(f"{self._in_a_row} groups in a row were dead-lettered, {last}")
        share = dead / groups if groups == self._died.maxlen else 0.0
        told = f"{dead} of the last {groups} groups were dead-lettered, {last}"
        if share > LIMIT:
            raise ValueError(told)
        if share > ALARM and not self._alarmed:
            log.warning(told)
            self._streams.event("many_dead", "learner", told)
        self._alarmed = share > ALARM
