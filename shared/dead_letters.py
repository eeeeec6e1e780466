"""Dead letters as people handle them: found, requeued, or dropped.

Neither service nor console puts a dead group back onto a data stream. The learner has returned its credit
and issued another prompt in its place, so the group is none of its work any more; what came back would be
thrown away as a duplicate, and would be one group more in flight than the credits allow. `requeue` therefore
only asks: the learner issues the prompt again, under the same id, when it next has a credit for a new one.
"""

from collections.abc import Iterator

from shared import scripts
from shared.entry import Entry
from shared.stream import Streams

_PAGE = 100
"""Letters read at once: each holds a whole group."""


class DeadLetters:
    """The dead letters of one run."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._requeue = streams.client.register_script(scripts.REQUEUE)
        self._drop = streams.client.register_script(scripts.DROP)

    def all(self) -> Iterator[Entry]:
        """Every letter, the oldest first."""
        cursor = "0"
        while page := self._streams.after("dead", cursor, _PAGE):
            cursor = page[-1].entry_id
            yield from page

    def requeue(self, letter: Entry) -> bool:
        """Replace a letter by a request to the learner to issue its prompt again. False if it is gone.

        The request waits where there is no learner, until one resumes the run.

        Raises:
        ValueError: the learner could do nothing with it; the message says why.
        """
        if not letter.id:
            raise ValueError(
                f"dead letter {letter.entry_id} has no id, so the learner cannot tell which prompt it is; "
                "look at it with `dead show`, then drop it"
            )
        if letter.fields.get("purpose") == "eval":
            raise ValueError(
                f"{letter.id} is of an evaluation, which went on without it and counted it as missing; "
                "the policy it asked has been trained since. Drop it: the next evaluation asks the row again"
            )
        keys = [self._streams.key("dead"), self._streams.key("requeue")]
        moved = bool(self._requeue(keys=keys, args=[letter.entry_id, letter.id]))
        if moved:
            cause = letter.fields.get("cause", "")[:300]
            self._streams.event("requeue", "console", f"{letter.id}: to be issued again, was: {cause}")
        return moved

    def drop(self, letter: Entry) -> bool:
        """Delete a letter for good. False if it is gone.

        Raises:
        ValueError: a learner still waits for the group, because it has not noticed that it died.
        """
        keys = [self._streams.key("dead"), self._streams.key("inflight")]
        dropped = int(self._drop(keys=keys, args=[letter.entry_id, letter.id]))
        if dropped < 0:
            raise ValueError(
                f"{letter.id} is in flight for the learner, which learns from this letter that it died; "
                "drop it when the learner has issued its next prompts, or requeue it"
            )
        if dropped:
            self._streams.event("drop", "console", f"{letter.id}: {letter.fields.get('cause', '')[:300]}")
        return bool(dropped)
