"""What the benchmark of the reward service computes: its sender, its items, its tables."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from benchmarks.http_load import Answer, Load, request, send
from benchmarks.reward import is_endless, shape, sound_seconds
from benchmarks.reward_items import GSM8K, Problem, agreement, make_items, make_up, read_gsm8k, rule
from benchmarks.reward_neural import Bare, make_texts, write_model
from benchmarks.side_by_side import fastest, in_turn, quantile, ratio
from services.reward.neural.config import NeuralConfig
from services.reward.neural.scorer import NeuralScorer

Seen = list[tuple[int, bytes]]
"""Of each request, the port that got it and its body."""


class Echo(BaseHTTPRequestHandler):
    """Echoes bodies in two pieces; hangs up on the body `leave`."""

    protocol_version = "HTTP/1.1"
    seen: Seen

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append((self.server.server_port, body))  # type: ignore[attr-defined]
        if body == b"leave":
            self.close_connection = True
            return
        self.send_response(418)
        self.send_header("CONTENT-LENGTH", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:3])
        self.wfile.flush()
        self.wfile.write(body[3:])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def echoes() -> Iterator[tuple[list[int], Seen]]:
    """Two ports that echo, and what they have seen."""
    seen: Seen = []
    handler = type("Handler", (Echo,), {"seen": seen})
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), handler) for _ in range(2)]
    threads = [threading.Thread(target=server.serve_forever) for server in servers]
    for thread in threads:
        thread.start()
    yield [server.server_port for server in servers], seen
    for server, thread in zip(servers, threads, strict=True):
        server.shutdown()
        server.server_close()
        thread.join()


def test_every_request_is_sent_once_and_answers_come_in_their_order(echoes: tuple[list[int], Seen]) -> None:
    ports, seen = echoes
    bodies = [b"body %d" % number for number in range(50)]
    load = send(ports, [request("/", body) for body in bodies], 4)
    assert [answer.body for answer in load.answers] == bodies
    assert {answer.status for answer in load.answers} == {418}
    assert sorted(body for _, body in seen) == sorted(bodies)
    assert {port for port, _ in seen} == set(ports)
    assert all(0 < answer.seconds <= load.seconds for answer in load.answers)
    assert load.rate == 50 / load.seconds


def test_a_lost_answer_is_an_error(echoes: tuple[list[int], Seen]) -> None:
    with pytest.raises(ConnectionError, match="request 1 was not answered"):
        send(echoes[0][:1], [request("/", body) for body in (b"stay", b"leave")], 1)


def test_rates_are_of_medians_over_the_rounds_after_the_first() -> None:
    taken = iter([9.0, 9.0, 1.0, 2.0, 2.0, 2.0, 4.0, 2.0])
    rates = in_turn({"one": lambda: next(taken), "other": lambda: next(taken)}, 8, 3)
    assert rates == {"one": [8.0, 4.0, 2.0], "other": [4.0, 4.0, 4.0]}
    assert ratio(rates, "one", "other") == 1.0
    assert fastest({"one": [1.0, 9.0, 1.0], "other": [2.0]}, ["one", "other"]) == "other"


def test_a_quantile_is_a_value_that_was_seen() -> None:
    values = list(range(100, 0, -1))
    assert quantile(values, 0.5) == 50
    assert quantile(values, 0.99) == 99
    assert quantile([7.0], 0.99) == 7.0


def test_every_second_item_is_wrong_and_rules_see_it() -> None:
    items = make_items(make_up(20), 30)
    assert [rule("gsm8k_reward_fn")(item) for item in items] == [10.0, 1.0] * 15
    assert [rule("math_verify")(item) for item in items[:4]] == [1.0, 0.0] * 2


@pytest.mark.skipif(not GSM8K.is_dir(), reason=f"the GSM8K data set is not at {GSM8K}")
def test_all_gsm8k_modes_agree_with_all_gold_answers() -> None:
    problems = read_gsm8k(GSM8K)
    assert len(problems) == 8792
    assert {tuple(found) for found in agreement(problems).values()} == {(1.0, 1.0)}


def test_disagreement_is_told_as_a_share() -> None:
    right, _ = make_up(2)
    signed = Problem("", "#### +5")  # the rule looks for no plus
    found = agreement([right, signed])["gsm8k_last_number_reward_fn"]
    assert found.right == 0.5 and found.refused == 1.0


def test_without_gsm8k_there_are_no_problems(tmp_path: Path) -> None:
    assert read_gsm8k(tmp_path) == []


def test_the_bare_model_gives_what_the_scorer_gives_however_it_is_batched(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model", 64, 1)
    items = make_texts(9, 8)
    bare = Bare(path)
    config = NeuralConfig.model_validate({"path": path, "device": "cpu", "prompt_as": "text"})
    scorer = NeuralScorer("rm", config)
    try:
        expected = torch.tensor(scorer.score(items, 60.0))
    finally:
        scorer.close()
    assert expected.unique().numel() == len(items)
    for rows in (1, 4, 9):
        torch.testing.assert_close(torch.tensor(bare.score(items, rows)), expected, atol=1e-4, rtol=1e-4)


def test_texts_have_the_lengths_that_the_benchmark_names() -> None:
    lengths = sorted(item.response.count(" ") + 1 for item in make_texts(1000, 32))
    assert (lengths[0], lengths[-1]) == (8, 128)
    assert 28 <= lengths[500] <= 36


def test_a_shape_is_hidden_size_layers_and_median() -> None:
    assert shape("256x4x32") == (256, 4, 32)


def test_latencies_are_those_of_sound_items_and_nothing_else_may_time_out() -> None:
    ok, late = b'{"results":[{"status":"ok"}]}', b'{"results":[{"status":"timeout"}]}'
    answers = [Answer(200, late if is_endless(place) else ok, float(place)) for place in range(100)]
    assert sound_seconds(Load(answers, 1.0)) == [float(place) for place in range(100) if place != 50]
    with pytest.raises(AssertionError, match="item 3"):
        sound_seconds(Load([*answers[:3], answers[50], *answers[4:]], 1.0))
