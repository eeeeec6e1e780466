"""Lengths, pending entries and ages, as they are on real streams."""

import pytest
from rich.console import Console

from services.console.queues import Queue, queue_table, read_queues
from shared.codec import encode
from shared.reader import Reader
from shared.stream import Streams
from tests.console.entries import a_prompt


def by_name(streams: Streams) -> dict[str, Queue]:
    return {queue.name: queue for queue in read_queues(streams)}


def issue(streams: Streams, count: int) -> None:
    for index in range(count):
        prompt = a_prompt(index)
        assert streams.append_prompts([(prompt.fields(), encode(prompt))], 1)


def test_a_queue_tells_what_is_taken_and_what_is_not(streams: Streams) -> None:
    issue(streams, 5)
    taken = Reader(streams, "prompts", "worker-1").read(2)
    prompts = by_name(streams)["prompts"]
    assert (prompts.length, prompts.pending, prompts.lag, prompts.consumers) == (5, 2, 3, 1)
    assert prompts.oldest_seconds is not None and 0 <= prompts.oldest_seconds < 60
    streams.forward(taken[0], "prompts", "rollouts", {"id": "id-0"}, b"payload")
    queues = by_name(streams)
    assert (queues["prompts"].length, queues["prompts"].pending, queues["prompts"].lag) == (4, 1, 3)
    assert (queues["rollouts"].length, queues["rollouts"].lag) == (1, 1)


def test_dead_letters_and_events_have_a_length_and_no_group(streams: Streams) -> None:
    issue(streams, 1)
    (entry,) = Reader(streams, "prompts", "worker-1").read(1)
    streams.dead_letter(entry, "prompts", "rollout", "failed", "too long", attempts=1)
    queues = by_name(streams)
    assert queues["dead"].length == 1 and queues["dead"].pending is None and queues["dead"].lag is None
    assert queues["events"].length == 1


@pytest.mark.usefixtures("redis_server")
def test_streams_that_do_not_exist_are_empty(streams: Streams) -> None:
    unknown = Streams(streams.client, "no-such-run")
    assert {(queue.length, queue.oldest_seconds) for queue in read_queues(unknown)} == {(0, None)}


def test_the_table_has_a_row_for_each_stream(streams: Streams) -> None:
    issue(streams, 2)
    console = Console(width=100)
    with console.capture() as captured:
        console.print(queue_table(read_queues(streams)))
    rows = {line.split()[0]: line.split()[1:] for line in captured.get().splitlines()}
    assert rows["stream"] == ["length", "pending", "lag", "oldest", "consumers"]
    assert rows["prompts"][:3] == ["2", "0", "2"] and rows["prompts"][-1] == "0"
    assert rows["dead"] == ["0", "-", "-", "-", "-"]
