"""The learner's end of the streams: prompts go out within the credit limit, experiences come back in order.

Groups are trained on in the order their prompts were issued. With the credit limit this bounds staleness
exactly: the prompts of batch `b` are issued after version `b - max_staleness` was published, and batch `b` is
trained at version `b`. It also makes a synchronous run independent of arrival order, and the ledger of what
was trained a single number, the position of the first prompt that was not.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from services.learner.data.prompts import PromptSource
from services.learner.dead_groups import DeadGroups
from services.learner.mortality import Mortality
from services.learner.queues import Queues
from services.learner.validation import check_answer, decode_experience
from shared.codec import MalformedEntry
from shared.entry import Entry
from shared.experience import Group, Prompt
from shared.losses import LossWatch
from shared.stream import QueueLost, Streams

log = logging.getLogger("rollstream.feed")


@dataclass(frozen=True)
class Arrival:
    entry: Entry
    group: Group


class Feed:
    """Rank 0's view of every group between issue and release."""

    def __init__(
        self,
        streams: Streams,
        source: PromptSource,
        *,
        learner_epoch: int,
        vocabulary: int,
        groups_per_step: int,
        max_staleness: int,
        total_groups: int,
        timeout: float,
        while_waiting: Callable[[], None],
        digest_of: Callable[[int], str | None] = lambda version: None,
    ) -> None:
        """
        Args:
            digest_of: of the weights published as a version, where they are known.
        """
        self._streams = streams
        self._source = source
        self._queues = Queues(streams, learner_epoch, timeout)
        self._vocabulary = vocabulary
        self._groups_per_step = groups_per_step
        self._credits = (max_staleness + 1) * groups_per_step
        self._total_groups = total_groups
        self._timeout = timeout
        self._while_waiting = while_waiting
        self._digest_of = digest_of
        self._issued: dict[str, tuple[Prompt, int]] = {}  # id -> prompt and position, in order of issue
        self._awaited: dict[str, Prompt] = {}  # evaluation prompts
        self._arrived: dict[str, Arrival] = {}
        self._consumed: dict[str, Arrival] = {}  # trained on, not yet released
        self._version = 0
        self._mortality = Mortality(streams, self._credits)
        self._dead = DeadGroups(streams)
        self._losses = LossWatch(streams)
        self.counts: Counter[str] = Counter()
        """`issued`, `trained`, `dead`: training groups of the run. `duplicates`: dropped since the start."""
        self.deaths = self._dead.deaths

    @property
    def in_flight(self) -> int:
        """Training groups issued and not yet consumed, wherever they are."""
        return len(self._issued)

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold to go on from here."""
        in_turn = (place for id, (_, place) in self._issued.items() if not self._dead.is_requeued(id))
        first_open = next(in_turn, self._source.position)
        return {
            "position": first_open,
            "trained": self.counts["trained"],
            **self._dead.state(first_open),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint: prompts after its position are issued again under the ids they had."""
        self._source.position = state["position"]
        dead, requeued = self._dead.restore(state)
        trained = state["trained"]
        self.counts.update(trained=trained, dead=dead, issued=trained + dead + requeued)

    def issue(self, version: int) -> None:
        """Issue prompts until the credits or the prompts that the run still needs are used up."""
        self._version = version
        self._queues.insist(self._notice_dead)
        new: list[Prompt] = []
        while (
            len(self._issued) < self._credits
            and self.counts["trained"] + len(self._issued) < self._total_groups
        ):
            position = self._dead.next_due()
            if position is None:
                position = self._source.position
                prompt = self._source.take(version)
                self.counts["issued"] += 1
            else:
                prompt = self._source.at(position, version)
            if self._dead.has_letter(prompt.id):  # since before this learner's checkpoint was taken up again
                self._bury(prompt.id, position)
                continue
            self._issued[prompt.id] = (prompt, position)
            new.append(prompt)
        self._queues.append(new)

    def take(self, version: int) -> list[Group]:
        """The next batch, in order of issue; waits until all of it has arrived.

        Raises:
        ValueError: nothing arrived for the configured time; the message says where the groups are.
        """
        deadline = time.monotonic() + self._timeout
        while True:
            self.issue(version)  # replaces what died
            batch = list(self._issued)[: self._groups_per_step]
            if all(id in self._arrived for id in batch):
                break
            if self._receive():
                deadline = time.monotonic() + self._timeout
            self._check_progress(deadline)
        arrivals = {id: self._arrived.pop(id) for id in batch}
        self._consumed |= arrivals
        return [arrival.group for arrival in arrivals.values()]

    def consumed(self, groups: Sequence[Group]) -> list[Entry]:
        """The groups' effect is in the published policy: their credits may be used again.

        Returns the entries that they came in.
        """
        for group in groups:
            del self._issued[group.prompt.id]
            self._dead.trained(group.prompt.id)
        self.counts["trained"] += len(groups)
        return [self._consumed[group.prompt.id].entry for group in groups]

    def release(self) -> None:
        """Acknowledge everything consumed so far. Only after the checkpoint that holds its effect."""
        self._release(list(self._consumed.values()))
        self._consumed = {}
        self._queues.insist(self._dead.release)

    def confirm_ownership(self) -> None:
        """Raises:
        Fenced: a newer learner owns the run, so nothing of this one may be written any more.
        """
        self._queues.free([], [])

    def evaluate(self, prompts: Sequence[Prompt], version: int) -> list[Group]:
        """Send prompts through the services and wait for their scored groups, which are never trained on.

        Groups that were dead-lettered are missing from the result.
        """
        self._version = version
        self._awaited = {prompt.id: prompt for prompt in prompts}
        self._queues.append(prompts)
        done: list[Arrival] = []
        deadline = time.monotonic() + self._timeout
        while self._awaited:
            if self._receive():
                deadline = time.monotonic() + self._timeout
            self._check_progress(deadline)
            self._queues.insist(self._notice_dead)
            ready = [self._arrived.pop(id) for id in list(self._awaited) if id in self._arrived]
            for arrival in ready:
                del self._awaited[arrival.group.prompt.id]
            self._release(ready)
            done += ready
        return [arrival.group for arrival in done]

    def _release(self, arrivals: Sequence[Arrival]) -> None:
        entries = [arrival.entry for arrival in arrivals]
        self._queues.free(entries, [entry.id for entry in entries])

    def _receive(self) -> int:
        """Read what has come and return how many groups were new. Waits a moment when there is nothing."""
        self._queues.insist(self._while_waiting)
        self._make_losses_good()
        try:
            entries = self._queues.read()
        except QueueLost:
            self._losses.look_now()
            return 0
        return sum(self._accept(entry) for entry in entries)

    def _make_losses_good(self) -> None:
        """Issue again what Redis may have lost. After a mere restart that is only what is not in flight any
        more, because Redis came back with an older state.

        All streams are there first: who came upon a missing one later would report the same loss again.
        """
        loss = self._queues.insist(self._losses.look)
        if loss is None:
            return
        wanted = [*(prompt for prompt, _ in self._issued.values()), *self._awaited.values()]
        missing = [prompt for prompt in wanted if prompt.id not in self._arrived]
        if self._queues.insist(self._streams.ensure_groups):
            loss = "loss"
        if loss == "restart":
            again = self._queues.append(missing)
        else:
            self._queues.append_again(missing)
            again = len(missing)
        text = f"Redis: {loss}; {again} prompts are issued again"
        log.warning(text)
        self._streams.event("lost" if again else "restart", "learner", text)

    def _accept(self, entry: Entry) -> bool:
        id = entry.id
        wanted = id in self._issued or id in self._awaited
        already = id in self._arrived or id in self._consumed
        if not wanted or already:
            # Trained before the last restart, or delivered twice: acknowledged without a second effect.
            self.counts["duplicates"] += 1
            self._queues.free([entry], [] if already else [id])
            return False
        prompt = self._issued[id][0] if id in self._issued else self._awaited[id]
        try:
            group = decode_experience(entry, self._vocabulary)
            is_outdated = group.prompt.issued_version < prompt.issued_version
            if not is_outdated:
                check_answer(group, prompt)
        except MalformedEntry as error:
            self._queues.bury(entry, str(error))
            return False
        if is_outdated:
            # A copy of the time before it died and was requeued: too stale, and the new one is on its way.
            self.counts["duplicates"] += 1
            self._queues.free([entry], [])
            return False
        diverged = self._digest_of(group.max_version) not in (None, group.weights_digest)
        if group.max_version > self._version or diverged:
            # A server still served what a learner before this one had published.
            log.warning("id=%s is of other weights of version %d: issued again", id, group.max_version)
            self._queues.free([entry], [id])
            self._queues.append([prompt])
            return False
        self._arrived[id] = Arrival(entry, group)
        self._mortality.arrived()
        return True

    def _notice_dead(self) -> None:
        """Stop waiting for groups that were dead-lettered, return their credits, and note which of them
        people requeued. Repeatable: what is in hand when Redis fails is read again.
        """
        for entry in self._dead.letters():
            self._queues.free([], [entry.id])
            wanted = entry.id in self._issued or self._awaited.pop(entry.id, None) is not None
            if entry.id in self._issued:
                self._bury(entry.id, self._issued.pop(entry.id)[1])
            log.warning("id=%s was dead-lettered: %s", entry.id, entry.fields.get("cause"))
            if wanted:  # not those that an earlier learner saw
                self._mortality.died(entry)
        for id in self._dead.requests():
            if id in self._issued and id not in self._arrived:  # requeued before its death was noticed
                self._queues.append_again([self._issued[id][0]])
            else:
                log.warning("id=%s was requeued, but is not dead in the book: left alone", id)
        self.counts["dead"] = self._dead.count

    def _bury(self, id: str, position: int) -> None:
        self._dead.bury(id, position)
        self.counts["dead"] = self._dead.count

    def _check_progress(self, deadline: float) -> None:
        if time.monotonic() < deadline:
            return
        client, key = self._streams.client, self._streams.key
        lengths = ", ".join(
            f"{name} {client.xlen(key(name))}" for name in ("prompts", "rollouts", "experiences")
        )
        waiting_for = len(self._issued) + len(self._awaited)
        raise ValueError(
            f"no group arrived for {self._timeout:.0f} s while {waiting_for} are in flight "
            f"(stream lengths: {lengths}). Is a rollout and a reward service running for run "
            f"{self._streams.run!r}?"
        )
