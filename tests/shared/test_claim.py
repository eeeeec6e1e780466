"""Entries of dead consumers: taken over once, counted, and buried when they are what kills."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from shared.reader import Reader
from shared.stream import Streams, connect
from tests.conftest import RedisServer
from tests.shared.test_stream import issue


def test_of_two_workers_that_hold_an_entry_only_the_first_delivers(streams: Streams) -> None:
    issue(streams, 1)
    (held,) = Reader(streams, "prompts", "dead").read(1, 100)
    assert streams.claim_from_the_dead("prompts", "alive") == 1, "at once: idle times follow a clock"
    assert streams.claim_from_the_dead("prompts", "alive") == 0
    (claimed,) = Reader(streams, "prompts", "alive").read(1, 100)
    assert streams.forward(claimed, "prompts", "rollouts", {"id": "id1"}, b"first")
    assert not streams.forward(held, "prompts", "rollouts", {"id": "id1"}, b"second")
    assert [entry.payload for entry in streams.tail("rollouts", 10)] == [b"first"]


def test_work_of_a_live_consumer_is_left_alone(streams: Streams) -> None:
    issue(streams, 1)
    (held,) = Reader(streams, "prompts", "slow").read(1, 100)
    streams.client.xclaim(streams.key("prompts"), "rollout", "slow", 0, [held.entry_id], idle=60_000)
    streams.client.set(streams.heartbeat_key("slow"), "{}")
    assert streams.claim_from_the_dead("prompts", "other") == 0
    streams.client.delete(streams.heartbeat_key("slow"))
    assert streams.claim_from_the_dead("prompts", "other") == 1


def test_of_claimers_at_the_same_time_one_takes_an_entry_and_it_counts_as_one_delivery(
    streams: Streams, redis_server: RedisServer
) -> None:
    issue(streams, *range(50))
    assert len(Reader(streams, "prompts", "dead").read(50, 100)) == 50
    names = [f"claimer{number}" for number in range(4)]
    for name in names:
        streams.client.set(streams.heartbeat_key(name), "{}")

    def claim(name: str) -> int:
        with connect(redis_server.url) as client:
            return Streams(client, streams.run).claim_from_the_dead("prompts", name)

    with ThreadPoolExecutor() as pool:
        assert sorted(pool.map(claim, names)) == [0, 0, 0, 50]
    taken = [item for name in names for item in streams.pending("prompts", name)]
    assert [item["times_delivered"] for item in taken] == [2] * 50
    consumers: Any = streams.client.xinfo_consumers(streams.key("prompts"), "rollout")
    assert "dead" not in {facts["name"].decode() for facts in consumers}


def test_an_entry_that_keeps_killing_its_consumers_is_buried(streams: Streams) -> None:
    issue(streams, 1)
    Reader(streams, "prompts", "w").read(1, 10)
    (entry,) = streams.tail("prompts", 1)
    streams.client.xclaim(streams.key("prompts"), "rollout", "w", 0, [entry.entry_id], retrycount=6)
    assert Reader(streams, "prompts", "w").read(1, 10) == []
    (dead,) = streams.tail("dead", 10)
    assert dead.fields["stage"] == "rollout" and "none finished" in dead.fields["cause"]
    assert dead.payload == b"payload1"


@pytest.mark.parametrize("deadly", [0, 1, 3])
def test_of_entries_that_consumers_died_with_only_the_deadly_one_is_buried(
    streams: Streams, deadly: int
) -> None:
    issue(streams, 0, 1, 2, 3)
    done, deaths = [], 0
    for number in range(6):
        consumer, previous = f"w{number}", f"w{number - 1}"
        left = len(streams.pending("prompts", previous))
        assert streams.claim_from_the_dead("prompts", consumer) == left
        reader = Reader(streams, "prompts", consumer, sweep_seconds=0.0)
        while entries := reader.read(4, 1):
            if f"id{deadly}" in [entry.id for entry in entries]:
                deaths += 1
                break
            for entry in entries:
                assert streams.forward(entry, "prompts", "rollouts", {"id": entry.id}, b"")
                reader.done(entry)
                done.append(entry.id)
    assert deaths == 5 and len(set(done)) == 3
    assert [letter.id for letter in streams.after("dead", "0")] == [f"id{deadly}"]
