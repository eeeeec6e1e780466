"""The learner's book of the training groups that died, and of those that people requeued.

Truth is in the book, which every checkpoint holds; a letter on `dead` and a request on `requeue` only report.
A request is honoured if the book has its group as dead by just that letter, and is deleted only when a
checkpoint that knows of it is durable. So a group that was requeued is issued once more, trained on once,
and not forgotten, wherever the learner is killed meanwhile.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from shared.entry import Entry
from shared.stream import Streams


class DeadGroups:
    """Which groups are dead, and which of them are to be issued again.

    A position is a group's place in the order of the prompt source. Groups at and after the first one that is
    still open do not go into a checkpoint: a resumed learner comes to them again, and finds their letters.
    """

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._letters: dict[str, str] = {}  # id -> its newest letter
        self._dead: dict[str, int] = {}  # id -> position
        self._requeued: dict[str, int] = {}  # and not trained on yet: id -> position
        self._due: list[int] = []  # positions of those that are not issued yet
        self._letter_cursor = self._request_cursor = "0"
        self.deaths: Counter[tuple[str, str]] = Counter()
        """Letters read, by the service that gave the group up and the kind of its cause."""
        self._requests: list[str] = []  # read since the last durable checkpoint

    @property
    def count(self) -> int:
        """Training groups that are dead."""
        return len(self._dead)

    def has_letter(self, id: str) -> bool:
        return id in self._letters

    def letters(self) -> Iterator[Entry]:
        """New dead letters. One counts as read when the next is asked for."""
        while page := self._streams.after("dead", self._letter_cursor):
            for letter in page:
                yield letter
                self.deaths[letter.fields.get("stage", ""), letter.fields.get("kind", "")] += 1
                self._letters[letter.id] = letter.entry_id
                self._letter_cursor = letter.entry_id

    def requests(self) -> Iterator[str]:
        """Ids of requeued groups that the book does not have as dead by the letter of the request."""
        while page := self._streams.after("requeue", self._request_cursor):
            for request in page:
                if not self._requeue(request.id, request.fields.get("letter", "")):
                    yield request.id
                self._requests.append(request.entry_id)
                self._request_cursor = request.entry_id

    def bury(self, id: str, position: int) -> None:
        """A training group is not waited for any more."""
        self._dead[id] = position
        self._requeued.pop(id, None)

    def next_due(self) -> int | None:
        """The position of the next group to be issued again; None if there is none."""
        return self._due.pop(0) if self._due else None

    def is_requeued(self, id: str) -> bool:
        return id in self._requeued

    def trained(self, id: str) -> None:
        self._requeued.pop(id, None)

    def release(self) -> None:
        """Delete the requests read so far. Only after the checkpoint that holds their effect."""
        if self._requests:
            self._streams.client.xdel(self._streams.key("requeue"), *self._requests)
            self._requests = []

    def state(self, first_open: int) -> dict[str, Any]:
        """What a checkpoint must hold of the groups before the position `first_open`."""
        dead = {id: position for id, position in self._dead.items() if position < first_open}
        return {
            "dead": {id: [position, self._letters[id]] for id, position in dead.items()},
            # The key of checkpoints that were written before these groups were called requeued.
            "returned": {id: position for id, position in self._requeued.items() if position < first_open},
        }

    def restore(self, state: Mapping[str, Any]) -> tuple[int, int]:
        """Go on from a checkpoint. Returns how many groups are dead, and how many are to be issued again."""
        for id, (position, letter) in state["dead"].items():
            self._dead[id], self._letters[id] = position, letter
        self._requeued = dict(state["returned"])
        self._due = list(self._requeued.values())
        return len(self._dead), len(self._due)

    def _requeue(self, id: str, letter: str) -> bool:
        if self._letters.get(id) != letter:
            return False
        del self._letters[id]  # also where the source has yet to come to it: it will not be passed over
        if id in self._dead:
            self._requeued[id] = self._dead.pop(id)
            self._due.append(self._requeued[id])
        return True
