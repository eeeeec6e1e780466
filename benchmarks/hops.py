"""Groups on their way round the three streams: through Rollstream's own code, and by redis-py alone.

Both walk in one process and one thread: a batch of prompts is issued, each hop takes what has come and hands
it on, and the learner acknowledges. Nothing is generated or scored: completions and rewards are there before.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis

from services.learner.data.prompts import Dataset, PromptSource, Row
from services.learner.feed import Feed
from shared.codec import decode_group, decode_prompt, encode, intact_payload
from shared.experience import Completion, Float32Array, Group, Int32Array, Sampling, VersionSpan
from shared.reader import Reader
from shared.stream import STREAMS, Move, StreamName, Streams, parts

VOCABULARY = 150_000
_VERSION = 0
_GROUP = "worker"


@dataclass(frozen=True)
class Size:
    """Of payloads: what is drawn between the bounds lies evenly between them."""

    prompt_tokens: tuple[int, int]
    completions: int
    completion_tokens: tuple[int, int]
    letters_per_token: float


SIZES = {
    "demo": Size((36, 48), 4, (35, 55), 1.0),
    "gsm8k": Size((60, 180), 4, (64, 512), 4.0),
}


def make_rows(size: Size, count: int, seed: int = 0) -> list[Row]:
    """A data set's prompts of random tokens and letters, with the metadata that conversations have."""
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        ids = _tokens(draw, size.prompt_tokens)
        text = _text(draw, len(ids), size)
        metadata = {"dataset": "train", "messages": [{"role": "user", "content": text}]}
        rows.append(Row(text, ids, str(number), metadata))
    return rows


def make_completions(size: Size, seed: int) -> list[Completion]:
    """What an engine would answer to one prompt."""
    draw = random.Random(seed)
    made = []
    for _ in range(size.completions):
        ids = _tokens(draw, size.completion_tokens)
        logprobs = Float32Array(-draw.expovariate(2.0) for _ in ids)
        spans = [VersionSpan(_VERSION, len(ids))]
        made.append(
            Completion(
                token_ids=ids,
                logprobs=logprobs,
                text=_text(draw, len(ids), size),
                finish_reason="stop",
                version_spans=spans,
            )
        )
    return made


class Ours:
    """The learner's feed, and what the two services do with an entry but for generating and scoring."""

    def __init__(self, streams: Streams, size: Size, groups: int, together: int) -> None:
        """
        Args:
            groups: in a batch; all of them are in flight at once.
            together: how many a service hands on in one step.
        """
        rows = make_rows(size, groups)
        passes = 100  # so that the data set is not shuffled anew with every batch
        self.streams = streams
        self._completions = {row.text: make_completions(size, number) for number, row in enumerate(rows)}
        streams.ensure_groups()
        sampling = Sampling(max_tokens=size.completion_tokens[1])
        self._feed = Feed(
            streams,
            PromptSource(streams.run, [Dataset("train", rows * passes)], 0, size.completions, sampling),
            learner_epoch=streams.next_learner_epoch(),
            vocabulary=VOCABULARY,
            groups_per_step=groups,
            max_staleness=0,
            total_groups=10**9,
            timeout=60.0,
            while_waiting=lambda: None,
        )
        self._prompts = Reader(streams, "prompts", "rollout")
        self._rollouts = Reader(streams, "rollouts", "reward")
        self._groups = groups
        self._together = together

    def batch(self) -> list[Group]:
        """One batch, from its issue to its acknowledgement; what the learner would train on."""
        self.issue()
        self.generate()
        self.score()
        return self.train()

    def issue(self) -> None:
        self._feed.issue(_VERSION)

    def generate(self) -> None:
        """The rollout service's hop."""
        moves: list[Move] = []
        for entry in self._prompts.read(self._groups):
            prompt = decode_prompt(intact_payload(entry))
            group = Group(
                prompt=prompt,
                completions=self._completions[prompt.text],
                worker="rollout-0",
                weights_digest="0" * 64,
            )
            facts = {"rollout_seconds": "0.000", "rollout_attempts": 1}
            moves.append((entry, group.fields() | facts, encode(group)))
        self._forward(moves, self._prompts, "rollouts")

    def score(self) -> None:
        """The reward service's hop."""
        moves: list[Move] = []
        for entry in self._rollouts.read(self._groups):
            group = decode_group(intact_payload(entry))
            for completion in group.completions:
                completion.reward, completion.components = 1.0, {"gsm8k_reward_fn": 1.0}
            facts = {"reward_worker": "reward-0", "reward_seconds": "0.000", "reward_attempts": 1}
            moves.append((entry, group.fields() | facts, encode(group)))
        self._forward(moves, self._rollouts, "experiences")

    def _forward(self, moves: list[Move], reader: Reader, target: StreamName) -> None:
        for start in range(0, len(moves), self._together):
            for part in parts(moves[start : start + self._together]):
                self.streams.forward_all(part, reader.source, target)
        for move in moves:
            reader.done(move[0])

    def train(self) -> list[Group]:
        groups = self._feed.take(_VERSION)
        self._feed.consumed(groups)
        self._feed.release()
        return groups


Fields = dict[bytes, bytes]


class Raw:
    """The same entries by pipelines of redis-py, which nothing looks into."""

    def __init__(self, client: "redis.Redis", entries: dict[StreamName, list[Fields]], prefix: str) -> None:
        """prefix: of the streams' keys."""
        self._client = client
        self._entries = entries
        self._prefix = prefix
        self.nbytes = sum(
            len(name) + len(value)
            for stream in entries.values()
            for fields in stream
            for name, value in fields.items()
        )
        """Of a batch on its way through all three streams."""
        for stream in STREAMS:
            client.xgroup_create(self.key(stream), _GROUP, id="0", mkstream=True)

    def key(self, stream: StreamName) -> str:
        return self._prefix + stream

    def batch(self) -> int:
        """One batch, from its first XADD to its last XACK. Gives the number of groups that came round."""
        self._hand_on([], None, "prompts")
        source: StreamName
        target: StreamName | None
        for source, target in (("prompts", "rollouts"), ("rollouts", "experiences"), ("experiences", None)):
            ids = self._read(source)
            self._hand_on(ids, source, target)
        return len(ids)

    def trim(self) -> None:
        """Delete what is acknowledged; off the clock."""
        for stream in STREAMS:
            self._client.xtrim(self.key(stream), maxlen=0, approximate=False)

    def _read(self, source: StreamName) -> list[bytes]:
        reply: Any = self._client.xreadgroup(
            _GROUP, "worker", {self.key(source): ">"}, count=len(self._entries[source]), block=1000
        )
        return [entry_id for _, items in reply for entry_id, _ in items]

    def _hand_on(self, ids: Sequence[bytes], source: StreamName | None, target: StreamName | None) -> None:
        pipeline = self._client.pipeline(transaction=False)
        if target:
            for fields in self._entries[target]:
                pipeline.xadd(self.key(target), fields)  # type: ignore[arg-type]
        if source:
            pipeline.xack(self.key(source), _GROUP, *ids)  # type: ignore[arg-type]
        pipeline.execute()


def entries_of(walk: Ours) -> dict[StreamName, list[Fields]]:
    """What one batch looks like on each stream. The batch is walked to its end."""
    found: dict[StreamName, list[Fields]] = {}
    hops = (walk.issue, walk.generate, walk.score)
    for stream, hop in zip(STREAMS, hops, strict=True):
        hop()
        items: Any = walk.streams.client.xrange(walk.streams.key(stream))
        found[stream] = [fields for _, fields in items]
    walk.train()
    return found


def _tokens(draw: random.Random, bounds: tuple[int, int]) -> Int32Array:
    return Int32Array(draw.randrange(VOCABULARY) for _ in range(draw.randint(*bounds)))


def _text(draw: random.Random, tokens: int, size: Size) -> str:
    return "".join(
        draw.choices("abcdefghijklmnopqrstuvwxyz 0123456789\n", k=round(tokens * size.letters_per_token))
    )
