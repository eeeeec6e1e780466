"""Every misbehaviour of a server, over real sockets: none of it becomes a number."""

import socket
import threading
import time
from typing import Any

import pytest

from services.reward.external.breaker import Breaker
from services.reward.external.config import HOSTS_VARIABLE, ExternalConfig, check_host
from services.reward.protocol import Failure, Outcome
from tests.reward.external.servers import Reply, ask, items, scorer_of, serving

OPENRLHF: dict[str, Any] = {"contract": "openrlhf", "max_retries": 0}


def only(outcomes: list[Outcome]) -> Failure:
    (outcome,) = outcomes
    assert isinstance(outcome, Failure)
    return outcome


@pytest.mark.parametrize("status", [201, 204, 301, 302, 307, 401, 403, 404, 500, 503])
def test_scores_beside_any_status_but_200_are_no_scores(status: int) -> None:
    body = b"" if status == 204 else {"rewards": [1.0]}
    reply = Reply(body, status, {"location": "http://127.0.0.1:1/"})
    failure = only(ask(lambda _: reply, items("a"), **OPENRLHF))
    assert failure.status == "error" and str(status) in failure.cause


def test_a_redirect_is_not_followed() -> None:
    with serving(lambda _: Reply({"rewards": [1.0]})) as other:
        moved = Reply(b"", 307, {"location": other.url})
        failure = only(ask(lambda _: moved, items("a"), contract="openrlhf"))
        assert "redirected (307)" in failure.cause and not other.seen


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"<html>", b"\xff\xfe", b"[" * 100_000],
)
def test_garbage_is_no_score(body: bytes) -> None:
    assert "no JSON" in only(ask(lambda _: Reply(body), items("a"), **OPENRLHF)).cause


def test_a_huge_body_is_left_unread() -> None:
    reply = Reply(b" " * 2**24 + b'{"rewards": [1.0]}')
    failure = only(ask(lambda _: reply, items("a"), max_reply_bytes=2**16, **OPENRLHF))
    assert "longer than max_reply_bytes" in failure.cause


def test_a_compressed_body_is_not_unpacked() -> None:
    reply = Reply(b"\x1f\x8b", 200, {"content-encoding": "gzip"})
    assert "compressed" in only(ask(lambda _: reply, items("a"), **OPENRLHF)).cause


def test_busy_and_failing_servers_are_asked_again() -> None:
    replies = [
        Reply({}, 429, {"retry-after": "0"}),
        Reply({"rewards": [9.0]}, 503),
        Reply({"rewards": [2.0]}),
    ]
    with serving(lambda _: replies.pop(0)) as server:
        with scorer_of(server.url, contract="openrlhf", max_retries=2) as scorer:
            assert scorer.score(items("a"), 5.0) == [2.0]
        assert len(server.seen) == 3


def test_retries_are_capped_and_only_for_what_may_pass() -> None:
    for status, requests in ((500, 3), (403, 1)):
        with serving(lambda _, status=status: Reply({}, status)) as server:  # type: ignore[misc]
            with scorer_of(server.url, contract="openrlhf", max_retries=2) as scorer:
                only(scorer.score(items("a"), 5.0))
            assert len(server.seen) == requests


def test_a_server_that_is_not_there_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    with scorer_of(f"http://127.0.0.1:{port}/", contract="openrlhf", max_retries=1) as scorer:
        failure = only(scorer.score(items("a"), 5.0))
    assert "cannot reach its server" in failure.cause and "tried 2 times" in failure.cause


def test_a_server_that_drips_is_given_up_at_the_deadline() -> None:
    stop = threading.Event()

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\n")
            while not stop.wait(0.05):
                try:
                    connection.sendall(b"x: y\r\n")
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,))
        thread.start()
        with scorer_of(f"http://127.0.0.1:{listener.getsockname()[1]}/", contract="openrlhf") as scorer:
            start = time.monotonic()
            failure = only(scorer.score(items("a"), 0.4))
            took = time.monotonic() - start
        stop.set()
        thread.join()
    assert failure.status == "timeout" and took < 3.0


def test_one_item_that_the_server_refuses_does_not_spoil_the_others() -> None:
    def answer(body: Any) -> Reply:
        if "ask: long" in body["query"]:
            return Reply({"error": "too long"}, 413)
        return Reply({"rewards": [1.0] * len(body["query"])})

    outcomes = ask(answer, items("a", "b", "long", "c", "d"), contract="openrlhf")
    assert [o for o in outcomes if not isinstance(o, Failure)] == [1.0] * 4
    assert isinstance(outcomes[2], Failure) and outcomes[2].status == "invalid"


def test_items_are_sent_in_batches_and_come_back_in_order() -> None:
    def answer(body: Any) -> Reply:
        assert len(body["messages"]) <= 3
        return Reply({"scores": [float(text.removeprefix("ask: ")) for text in body["messages"]]})

    outcomes = ask(answer, items(*map(str, range(10))), contract="llamafactory", batch_size=3)
    assert outcomes == [float(n) for n in range(10)]


def test_the_token_goes_to_the_server_and_nowhere_else() -> None:
    with serving(lambda _: Reply({"rewards": [1.0]})) as server:
        with scorer_of(server.url, "a-secret-of-16-or-more", contract="openrlhf") as scorer:
            scorer.score(items("a"), 5.0)
            assert "secret" not in str(scorer.parameters)
        assert server.seen[0].headers["authorization"] == "Bearer a-secret-of-16-or-more"


def test_a_server_that_keeps_failing_is_left_alone_for_a_while() -> None:
    with serving(lambda _: Reply({}, 500)) as server:
        settings = {**OPENRLHF, "breaker_failures": 3, "breaker_seconds": 60, "max_concurrency": 1}
        with scorer_of(server.url, batch_size=1, **settings) as scorer:
            outcomes = scorer.score(items(*"abcdefgh"), 5.0)
        assert len(server.seen) == 3
    assert isinstance(outcomes[-1], Failure) and "kept failing" in outcomes[-1].cause


def test_an_open_breaker_lets_one_call_try_and_closes_on_its_success() -> None:
    now = [0.0]
    breaker = Breaker(failures=2, seconds=10, clock=lambda: now[0])
    breaker.failed()
    assert breaker.seconds_left() == 0
    breaker.failed()
    assert breaker.seconds_left() == 10
    now[0] = 10
    assert [breaker.seconds_left(), breaker.seconds_left()] == [0, 10], "one may try, the next may not"
    breaker.succeeded()
    assert breaker.seconds_left() == 0


def test_no_host_is_asked_that_the_environment_does_not_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HOSTS_VARIABLE, raising=False)
    with pytest.raises(ValueError, match="allows no host"):
        check_host("x", "http://rm:8000/score")
    monkeypatch.setenv(HOSTS_VARIABLE, "rm:8000, other")
    check_host("x", "http://RM:8000/score")
    check_host("x", "https://other/score")
    for url in ("http://rm/", "http://rm:8001/", "http://rm.evil:8000/", "http://rm:8000@evil/"):
        with pytest.raises(ValueError, match=HOSTS_VARIABLE):
            check_host("x", url)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://h/", "http://", "rm:8000", "http://u:p@h/"])
def test_a_url_that_is_not_plain_http_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="url"):
        ExternalConfig(contract="openrlhf", url=url)
