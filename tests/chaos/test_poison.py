"""Entries that are damaged, forged or delivered again are buried with their cause, or dropped and counted."""

import json
import pickle
import signal
import time
from collections.abc import Callable
from typing import Any

import msgspec

from shared.codec import decode_group, encode
from shared.entry import checksum
from shared.experience import Float32Array, Group, Int32Array, VersionSpan
from shared.stream import StreamName
from tests.chaos.audit import audit, weights_of
from tests.chaos.conftest import Begin
from tests.chaos.pipeline import Pipeline

Fields = dict[bytes, bytes]
Tamper = Callable[[bytes], bytes]


def flipped(payload: bytes) -> bytes:
    return payload[:40] + bytes([payload[40] ^ 1]) + payload[41:]


def of_another_schema(payload: bytes) -> bytes:
    return msgspec.msgpack.encode(msgspec.msgpack.decode(payload) | {"schema": 99})


def changed(change: Callable[[Group], Any]) -> Tamper:
    def tamper(payload: bytes) -> bytes:
        group = decode_group(payload)
        change(group)
        return encode(group)

    return tamper


def set_first(name: str, make: Callable[[int], Any]) -> Callable[[Group], Any]:
    def change(group: Group) -> None:
        setattr(group.completions[0], name, make(len(group.completions[0].token_ids)))

    return change


def with_another_prompt(group: Group) -> None:
    group.prompt = msgspec.structs.replace(group.prompt, token_ids=Int32Array([1]))


def lengthened(group: Group) -> None:
    count = group.prompt.sampling.max_tokens + 1
    (first, *_) = group.completions
    first.token_ids, first.logprobs = Int32Array([1] * count), Float32Array([-1.0] * count)
    first.version_spans = [VersionSpan(group.max_version, count)]


TAMPERED: list[tuple[Tamper, bool, str]] = [  # how, whether the checksum is made to fit, part of the cause
    (flipped, False, "was changed on its way"),
    (lambda payload: payload[:-7], True, "cannot be decoded"),
    (of_another_schema, True, "schema 99 is unknown"),
    (lambda payload: payload * 10, True, "cannot be decoded"),
    (lambda payload: pickle.dumps({"a": 1}), True, "cannot be decoded"),
    (changed(set_first("token_ids", lambda n: Int32Array([9999] * n))), True, "token id 9999"),
    (changed(set_first("logprobs", lambda n: Float32Array([float("nan")] * n))), True, "not finite"),
    (changed(set_first("version_spans", lambda n: [VersionSpan(0, n + 1)])), True, "version spans"),
    (changed(with_another_prompt), True, "not the one that was issued"),
    (changed(lengthened), True, "tokens; the prompt asked for"),
]


def waiting(pipeline: Pipeline, stream: StreamName) -> list[tuple[bytes, Fields]]:
    """Entries that nobody has been given yet."""
    key, client = pipeline.streams.key(stream), pipeline.client
    given = {item["message_id"] for item in client.xpending_range(key, "reward", "-", "+", 1000)}
    entries: Any = client.xrange(key)
    return [entry for entry in entries if entry[0] not in given]


def replace(pipeline: Pipeline, stream: StreamName, tampers: list[tuple[Tamper, bool, str]]) -> None:
    """Put changed copies in place of as many entries."""
    key, client = pipeline.streams.key(stream), pipeline.client
    for (entry_id, fields), (tamper, fits, _) in zip(waiting(pipeline, stream), tampers, strict=False):
        fields[b"payload"] = tamper(fields[b"payload"])
        if fits:
            fields[b"checksum"] = checksum(fields[b"payload"]).encode()
        client.xadd(key, fields)  # type: ignore[arg-type]
        client.xdel(key, entry_id)


def test_damaged_and_forged_groups_are_buried_with_their_cause_and_replaced(begin: Begin, steps: int) -> None:
    pipeline = begin(max_staleness=1)
    planned, half = list(TAMPERED), len(TAMPERED) // 2
    for step in (2, 5):
        pipeline.wait_for_step(step)
        pipeline.process("reward").strike(signal.SIGKILL)
        deadline = time.monotonic() + 30
        while len(waiting(pipeline, "rollouts")) < half:
            assert time.monotonic() < deadline, pipeline.told()
            time.sleep(0.01)
        replace(pipeline, "rollouts", planned[:half])
        del planned[:half]
    pipeline.finish()
    causes = list(audit(pipeline, steps).values())
    assert len(causes) == len(TAMPERED)
    for _, _, words in TAMPERED:
        assert any(words in cause for cause in causes), (words, causes)


def test_entries_that_nobody_issued_are_buried_or_dropped(
    begin: Begin, steps: int, undisturbed: dict[str, str]
) -> None:
    pipeline = begin()
    pipeline.wait_for_step(2)
    rubbish: list[Fields] = [
        {b"payload": b""},
        {b"id": b"nobody", b"payload": b"\x80" * 100_000},
        {b"\xff\xfe": b"\x00", b"id": b"x" * 5000},
        {b"id": b"p", b"payload": pickle.dumps(print)},
    ]
    for stream in ("prompts", "rollouts", "experiences"):
        for fields in rubbish:
            pipeline.client.xadd(pipeline.streams.key(stream), fields)  # type: ignore[arg-type]
    pipeline.finish()
    letters = pipeline.streams.tail("dead", 100)
    assert len(letters) == 2 * len(rubbish) and all(letter.fields["cause"] for letter in letters)
    assert audit(pipeline, steps) == {}
    assert pipeline.deaths == [] and weights_of(pipeline.run) == undisturbed


def test_groups_that_are_delivered_again_are_dropped_and_counted(
    begin: Begin, steps: int, undisturbed: dict[str, str]
) -> None:
    pipeline = begin(checkpoint_every=3)
    copies = 0
    for step in range(1, 11):
        pipeline.wait_for_step(step)
        key = pipeline.streams.key("experiences")
        entries: Any = pipeline.client.xrange(key, count=8)
        for _, fields in entries:
            pipeline.client.xadd(key, fields)
            copies += 1
    pipeline.finish()
    assert audit(pipeline, steps) == {}
    rows = [json.loads(row) for row in (pipeline.run / "metrics.jsonl").read_bytes().splitlines()]
    assert copies > 4 and rows[-1]["queue/duplicates"] >= copies - 8  # the last ones may be left to no one
    assert pipeline.deaths == [] and weights_of(pipeline.run) == undisturbed
