"""What the learner does when Redis is away, or comes back without what it had."""

import threading
from pathlib import Path

import pytest

from shared.reader import Reader
from shared.stream import STREAMS, QueueLost, Streams, connect
from tests.conftest import RedisServer
from tests.learner.test_feed import make_feed, pass_on, services, step


def told(streams: Streams) -> list[tuple[str, str]]:
    """Events of the learner: kind and text."""
    events = streams.after("events", "0")
    return [(event.fields["kind"], event.fields["text"]) for event in events]


def test_prompts_are_issued_again_after_redis_lost_them(streams: Streams) -> None:
    """Also when a rollout worker is the first to notice."""
    feed = make_feed(streams, total_groups=4)
    feed.issue(0)
    other = Reader(streams, "prompts", "other")
    assert len(other.read(4, 100)) == 4
    streams.client.flushall()
    with pytest.raises(QueueLost):
        other.read(1, 100)
    with services(streams):
        assert len(step(feed, 0)) == 4


def test_prompts_are_issued_again_when_only_the_experiences_were_lost(streams: Streams) -> None:
    feed = make_feed(streams, total_groups=4)
    feed.issue(0)
    pass_on(streams, Reader(streams, "prompts", "w").read(4, 100))
    streams.client.delete(streams.key("experiences"))
    with services(streams):
        assert len(step(feed, 0)) == 4


def test_the_learner_waits_for_a_redis_that_is_away(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    try:
        with connect(server.url, timeout=1.0) as client:
            streams = Streams(client, "away")
            streams.ensure_groups()
            feed = make_feed(streams, total_groups=4, timeout=60.0)
            feed.issue(0)
            server.kill()
            back = threading.Timer(8.0, server.start)  # longer than the client's own retries
            back.start()
            try:
                feed._receive()
                feed.issue(0)
            finally:
                back.join()
            with services(streams):
                assert len(step(feed, 0)) == 4
    finally:
        server.kill()


def test_an_outage_without_end_becomes_an_error(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    with connect(server.url, timeout=0.5) as client:
        streams = Streams(client, "gone")
        streams.ensure_groups()
        feed = make_feed(streams, timeout=0.5)
        server.kill()
        with pytest.raises(ValueError, match="Redis has not answered"):
            feed.issue(0)


def test_one_loss_of_all_streams_is_made_good_once(streams: Streams) -> None:
    """Whoever reads a stream later finds it there, and has nothing to report."""
    feed = make_feed(streams)
    feed.issue(0)
    streams.client.delete(*(streams.key(name) for name in (*STREAMS, "inflight")))
    with pytest.raises(QueueLost):
        Reader(streams, "prompts", "w").read(1, 10)
    feed._losses.look_now()
    feed._receive()
    assert Reader(streams, "rollouts", "w").read(1, 10) == []
    feed._losses.look_now()
    feed._receive()
    assert told(streams) == [("lost", "Redis: loss; 4 prompts are issued again")]
    assert streams.client.xlen(streams.key("prompts")) == 4


@pytest.mark.parametrize("emptied", [False, True])
def test_a_restart_of_redis_is_told_as_a_loss_only_if_it_lost_something(
    tmp_path: Path, emptied: bool
) -> None:
    server = RedisServer(tmp_path)
    try:
        with connect(server.url) as client:
            streams = Streams(client, "restart")
            streams.ensure_groups()
            feed = make_feed(streams)
            feed.issue(0)
            server.kill()
            server.start(*(["--appendonly", "no"] if emptied else []))
            feed._losses.look_now()
            feed._receive()
            again = 4 if emptied else 0
            cause = "loss" if emptied else "restart"
            kind = "lost" if emptied else "restart"
            assert told(streams) == [(kind, f"Redis: {cause}; {again} prompts are issued again")]
            assert client.xlen(streams.key("prompts")) == 4
    finally:
        server.kill()
