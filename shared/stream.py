"""The Redis Streams of a run: append once, read without loss, hand on atomically, bury with a cause.

Delivery is at least once and every effect is idempotent, so each command here may be repeated after a lost
reply:

* a prompt is appended only while its id is not in flight (`append_prompts`);
* an entry moves to the next stream only if its acknowledgement here succeeds, in one script (`forward`), so
  of two workers that hold the same entry exactly one delivers;
* what a reader was given but never saw is found again in its pending list (`shared.reader`).
"""

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import redis

from shared import scripts
from shared.causes import CauseKind
from shared.entry import Entry, flat_entry, parse_entry, seconds_of
from shared.outage import insist_at_start

log = logging.getLogger("rollstream.stream")

StreamName = Literal["prompts", "rollouts", "experiences"]
STREAMS: tuple[StreamName, ...] = ("prompts", "rollouts", "experiences")
GROUPS: dict[StreamName, str] = {"prompts": "rollout", "rollouts": "reward", "experiences": "learner"}
"""Who consumes each stream."""

MAX_DELIVERIES = 5
"""An entry that this many consumers died on is buried instead of being given to one more."""

EVENTS_KEPT = 10_000
_PAGE = 10_000

_STEP_BYTES = 1 << 17
"""Redis serves nobody else during a script; in larger ones a group is not cheaper."""

MOMENTS: dict[str, str] = {"prompts": "issued_at", "rollouts": "generated_at", "experiences": "scored_at"}
"""The field that tells, from the next hop on, when an entry came onto each stream: seconds, Redis's clock."""
CARRIED = frozenset(
    (*MOMENTS.values(), "purpose", "issued_version", "tokens", "min_version", "max_version", "worker",
     *(f"{group}_{fact}" for group in GROUPS.values()
       for fact in ("worker", "seconds", "attempts", "deliveries")))
)  # fmt: skip
"""Readable fields that stay with a group at every hop, also when it dies."""


class Fenced(RuntimeError):
    """A newer learner has taken over this run; this one must stop."""


class QueueLost(RuntimeError):
    """The stream or its group vanished: Redis was emptied or restarted without its data."""


Move = tuple[Entry, Mapping[str, Any], bytes]
"""An entry to be forwarded, and what takes its place: readable fields and payload."""


def connect(url: str, timeout: float = 10.0) -> "redis.Redis":
    """A client whose reads never outlive `timeout` seconds; blocking reads stay under half of it."""
    return redis.Redis.from_url(
        url, socket_timeout=timeout, socket_connect_timeout=timeout, health_check_interval=15, protocol=2
    )


def check_server(client: "redis.Redis", url: str) -> None:
    """Refuse a Redis that cannot hold a run's data, or does not answer soon.

    Raises:
    ValueError: it cannot be reached, or may evict keys; the message says what to do.
    """
    where = url.rsplit("@", 1)[-1]  # never the password
    try:
        memory: Any = insist_at_start(lambda: client.info("memory"))
    except (redis.RedisError, ValueError) as error:
        raise ValueError(
            f"Redis at {where} cannot be used ({error}); start it, or set redis.url / ROLLSTREAM_REDIS__URL."
        ) from error
    policy = memory.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise ValueError(
            f"Redis at {where} has maxmemory-policy {policy!r}, which may silently drop experience. "
            "Set it to 'noeviction' (redis-cli CONFIG SET maxmemory-policy noeviction)."
        )


class Streams:
    """The streams of one run. Synchronous; asynchronous services call it in threads."""

    def __init__(self, client: "redis.Redis", run: str) -> None:
        self.client = client
        self.run = run
        self._next_epoch = client.register_script(scripts.NEXT_EPOCH)
        self._start_anew = client.register_script(scripts.START_ANEW)
        self._append = client.register_script(scripts.APPEND)
        self._release = client.register_script(scripts.RELEASE)
        self._forward = client.register_script(scripts.FORWARD)
        self._claim = client.register_script(scripts.CLAIM)

    def key(self, name: str) -> str:
        """Keys of a run share the hash tag `{run}`, so that they live in one cluster slot."""
        return f"rollstream:{{{self.run}}}:{name}"

    def ensure_groups(self, streams: Sequence[StreamName] = STREAMS) -> bool:
        """Create streams and groups that are missing, each reading from its first entry.

        Returns whether any was missing.
        """
        missing = False
        for stream in streams:
            try:
                self.client.xgroup_create(self.key(stream), GROUPS[stream], id="0", mkstream=True)
                missing = True
            except redis.ResponseError as error:
                if "BUSYGROUP" not in str(error):
                    raise
        return missing

    # The learner's end.

    def forget_work(self, learner_epoch: int, *others: str) -> None:
        """Delete all work in flight, in whatever hands: forwarding it will find nothing to acknowledge.

        The streams are there again in the same step, so nobody takes this for a loss.

        Raises:
        Fenced: a newer learner owns the run.
        """
        keys = [self.key(name) for name in ("learner_epoch", *STREAMS, "inflight", *others)]
        self._fenced(self._start_anew, keys, [learner_epoch, *(GROUPS[stream] for stream in STREAMS)])

    def forget_run(self, learner_epoch: int) -> None:
        """Delete all that an earlier run of this name left behind. Raises as `forget_work`."""
        self.forget_work(learner_epoch, "dead", "requeue", "events")

    def next_learner_epoch(self) -> int:
        """Fence every earlier learner of this run out and return this one's number.

        Numbers follow the clock of Redis, so they also rise where Redis has lost the last one: the rollout
        servers remember it.
        """
        return int(self._next_epoch(keys=[self.key("learner_epoch")], args=[]))

    def append_prompts(self, prompts: Iterable[tuple[Mapping[str, Any], bytes]], learner_epoch: int) -> int:
        """Issue prompts, given as fields and payload, but for those whose ids are in flight already.

        All or none of them, in one step: rollout servers find a whole batch and not its first prompt.

        Returns how many were issued.

        Raises:
        Fenced: a newer learner owns the run.
        """
        keys = [self.key("learner_epoch"), self.key("inflight"), self.key("prompts")]
        arguments: list[Any] = [learner_epoch]
        for fields, payload in prompts:
            entry = flat_entry(fields, payload)
            arguments += [fields["id"], len(entry), *entry]
        return int(self._fenced(self._append, keys, arguments))

    def release(self, entries: Sequence[Entry], ids: Sequence[str], learner_epoch: int) -> None:
        """Acknowledge and delete experiences whose effect is durable, and return the credits of `ids`.

        Raises:
        Fenced: a newer learner owns the run.
        """
        keys = [self.key("learner_epoch"), self.key("inflight"), self.key("experiences")]
        entry_ids = [entry.entry_id for entry in entries]
        arguments = [learner_epoch, GROUPS["experiences"], len(entries), *entry_ids, *ids]
        self._fenced(self._release, keys, arguments)

    def in_flight(self) -> set[str]:
        """Ids issued and not yet released."""
        members: Any = self.client.smembers(self.key("inflight"))
        return {member.decode() for member in members}

    def _fenced(self, script: Any, keys: list[str], arguments: list[Any]) -> Any:
        try:
            return script(keys=keys, args=arguments)
        except redis.ResponseError as error:
            if "FENCED" in str(error):
                raise Fenced(f"run {self.run!r}: {error}; two learners must not share a run") from error
            raise

    # Any worker's end.

    def forward(self, entry: Entry, source: StreamName, target: StreamName, fields: Mapping[str, Any],
                payload: bytes) -> bool:  # fmt: skip
        """Replace `entry` of `source` by a new entry of `target`. False if somebody already had."""
        return self.forward_all([(entry, fields, payload)], source, target)[0]

    def forward_all(self, moves: Sequence[Move], source: StreamName, target: str) -> list[bool]:
        """Several in one step, which is cheaper than one by one. For each, what `forward` would return.

        Args:
        moves: as many as are in a part of `parts`.
        """
        arguments: list[Any] = [GROUPS[source]]
        for entry, fields, payload in moves:
            new = flat_entry({**fields, **_past(entry, source, fields)}, payload)
            arguments += [entry.entry_id, len(new), *new]
        moved: Any = self._forward(keys=[self.key(source), self.key(target)], args=arguments)
        return [bool(each) for each in moved]

    def dead_letter(self, entry: Entry, source: StreamName, stage: str, kind: CauseKind, cause: str,
                    attempts: int, by: str = "") -> bool:  # fmt: skip
        """Move an entry that cannot be processed to the dead stream, as it was, with its cause.

        Args:
        by: the worker that gives it up.
        """
        fields: dict[str, Any] = {"id": entry.id, "stage": stage, "kind": kind, "cause": cause[:2000],
                  "attempts": attempts, "at": f"{time.time():.3f}", "stream": source,
                  "by": by or stage}  # fmt: skip
        if "checksum" in entry.fields:
            fields["checksum"] = entry.fields["checksum"]  # as its writer had it
        (moved,) = self.forward_all([(entry, fields, entry.payload)], source, "dead")
        if moved:
            self.event("dead", stage, f"{entry.id}: {cause[:300]}")
        return moved

    def event(self, kind: str, service: str, text: str) -> None:
        """Tell people, if Redis can. Events are the only stream that is trimmed."""
        fields: Any = {"kind": kind, "at": f"{time.time():.3f}", "service": service, "text": text}
        try:
            self.client.xadd(self.key("events"), fields, maxlen=EVENTS_KEPT, approximate=True)
        except redis.RedisError as error:
            log.warning("event not posted (%s): %s %s", error, kind, text[:200])

    def claim_from_the_dead(self, source: StreamName, consumer: str) -> int:
        """Take over what consumers without a heartbeat left pending; the next `Reader.read` returns it.

        Returns the number of entries taken over.
        """
        key, group = self.key(source), GROUPS[source]
        try:
            consumers: Any = self.client.xinfo_consumers(key, group)
        except redis.ResponseError as error:
            if "NOGROUP" in str(error) or "no such key" in str(error):
                return 0  # nothing to claim; the next read makes the stream anew and says so
            raise
        others = {facts["name"].decode() for facts in consumers} - {consumer}
        return sum(self._claim([key, self.heartbeat_key(name)], [group, name, consumer]) for name in others)

    def heartbeat_key(self, worker: str) -> str:
        """Is there while a worker lives; see `shared.workers`."""
        return self.key(f"worker:{worker}")

    def pending(self, source: StreamName, consumer: str) -> list[Any]:
        """What `consumer` was given and has not finished: ids, idle times, delivery counts."""
        key, group = self.key(source), GROUPS[source]
        found: list[Any] = []
        first = "-"
        while True:
            page: list[Any] = self.client.xpending_range(key, group, first, "+", _PAGE, consumername=consumer)
            found += page
            if len(page) < _PAGE:
                return found
            first = f"({page[-1]['message_id'].decode()}"

    def tail(self, name: str, count: int) -> list[Entry]:
        """The newest `count` entries of a stream, oldest first, without touching their delivery."""
        newest_first: Any = self.client.xrevrange(self.key(name), count=count)
        return [parse_entry(item) for item in reversed(newest_first)]

    def after(self, name: str, entry_id: str, count: int = 1000) -> list[Entry]:
        """Entries of a stream that came after `entry_id` ("0" for all), without a group."""
        items: Any = self.client.xrange(self.key(name), min=f"({entry_id}", count=count)
        return [parse_entry(item) for item in items]


def parts(moves: Sequence[Move]) -> Iterator[list[Move]]:
    """In their order, as many at a time as have `_STEP_BYTES` of payload together, but at least one.

    Each part is repeated by itself after a lost reply, so that what other parts moved is known.
    """
    part: list[Move] = []
    size = 0
    for move in moves:
        size += len(move[2])
        if part and size > _STEP_BYTES:
            yield part
            part, size = [], len(move[2])
        part.append(move)
    if part:
        yield part


def _past(entry: Entry, source: StreamName, fields: Mapping[str, Any]) -> dict[str, Any]:
    """What an entry's successor tells of the way so far, beside the successor's own `fields`."""
    past: dict[str, Any] = {MOMENTS[source]: f"{seconds_of(entry.entry_id):.3f}"}
    if entry.deliveries > 1:
        past[f"{GROUPS[source]}_deliveries"] = entry.deliveries
    past |= {name: value for name, value in entry.fields.items() if name in CARRIED}
    return {name: value for name, value in past.items() if name not in fields}
