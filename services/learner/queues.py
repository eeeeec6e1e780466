"""What the learner asks of the streams, insisted upon while Redis is away. Every step here is repeatable."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from shared.codec import encode
from shared.entry import Entry
from shared.experience import Prompt
from shared.outage import insist
from shared.reader import Reader
from shared.stream import Streams

_APPENDED_AT_ONCE = 256
"""Redis serves nobody else during a script."""

T = TypeVar("T")


class Queues:
    """The streams of a run as their one learner uses them.

    Its methods raise `Fenced` if a newer learner owns the run, and ValueError if Redis is away for longer
    than the timeout.
    """

    def __init__(self, streams: Streams, learner_epoch: int, timeout: float) -> None:
        self._streams = streams
        self._learner_epoch = learner_epoch
        self._timeout = timeout
        self._reader = Reader(streams, "experiences", "learner")

    def insist(self, step: Callable[[], T]) -> T:
        """The result of a step that may be repeated, however long Redis stays away within the timeout."""
        return insist(step, self._timeout, self._reader.sweep_now)

    def append(self, prompts: Sequence[Prompt]) -> int:
        """Issue those that are not in flight already. Returns how many that were."""
        appended = 0
        for start in range(0, len(prompts), _APPENDED_AT_ONCE):
            entries = [(p.fields(), encode(p)) for p in prompts[start : start + _APPENDED_AT_ONCE]]
            appended += self.insist(partial(self._streams.append_prompts, entries, self._learner_epoch))
        return appended

    def append_again(self, prompts: Sequence[Prompt]) -> None:
        """Under the ids they have: whatever else comes back for them is dropped as a duplicate."""
        self.free([], [prompt.id for prompt in prompts])
        self.append(prompts)

    def free(self, entries: Sequence[Entry], ids: Sequence[str]) -> None:
        """Acknowledge experiences, and take ids out of flight."""
        self.insist(lambda: self._streams.release(entries, ids, self._learner_epoch))
        for entry in entries:
            self._reader.done(entry)

    def bury(self, entry: Entry, cause: str) -> None:
        """Dead-letter an experience that is not what it must be to be trained on."""
        self.insist(lambda: self._streams.dead_letter(entry, "experiences", "learner", "malformed", cause, 1))
        self._reader.done(entry)

    def read(self) -> list[Entry]:
        """Experiences that have come; waits a moment when there are none.

        Raises:
        QueueLost: their stream was gone, and what was on it.
        """
        return self.insist(lambda: self._reader.read(count=64, block_ms=200))
