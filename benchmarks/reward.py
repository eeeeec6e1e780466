"""`python -m benchmarks.reward`: what the reward service costs, beside the same work without it.

Real processes over real sockets. The contenders of one figure take their turns within each round, so that
whatever else the machine does strikes all of them. What counts is the ratio of medians.
"""

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.http_load import Load, request, send
from benchmarks.reward_items import (
    GSM8K,
    MADE_UP,
    Problem,
    agreement,
    body,
    make_items,
    make_up,
    read_gsm8k,
    rule,
)
from benchmarks.reward_neural import Bare, make_texts, write_model
from benchmarks.reward_processes import echo, redis, service
from benchmarks.side_by_side import fastest, in_turn, print_rates, quantile, ratio, seconds_of
from shared.scoring import ScoreItem

BATCH = 64
FIGURES = ("agreement", "batches", "single", "neural", "hanging")
SHAPES = [(128, 2, 32), (256, 4, 32), (256, 4, 128)]
"""Of reward model and texts: hidden size, layers, median of tokens."""
HANGS = r"<answer>9^{9^{9^{9}}}</answer>"
"""math-verify works on it for ever."""


def main() -> None:
    options = _options()
    problems = read_gsm8k(options.gsm8k)
    if not problems:
        print(f"no GSM8K at {options.gsm8k}: responses are made up, agreement is left out")
    with tempfile.TemporaryDirectory() as name, redis(Path(name) / "redis") as url:
        folder = Path(name)
        for figure in options.only or FIGURES:
            match figure:
                case "agreement" if problems:
                    show_agreement(problems)
                case "batches":
                    for rule_name, batches in (("gsm8k_reward_fn", 150), ("math_verify", 6)):
                        compare_batches(
                            folder, url, problems or make_up(MADE_UP), rule_name, batches, options
                        )
                case "single":
                    compare_single(folder, url, problems or make_up(MADE_UP), options)
                case "neural":
                    for hidden, layers, median in options.shapes:
                        compare_neural(folder, url, hidden, layers, median, options)
                case "hanging":
                    compare_hanging(folder, url, problems or make_up(MADE_UP), options)


def show_agreement(problems: Sequence[Problem]) -> None:
    print(f"\n{len(problems)} gold answers of GSM8K\n")
    print("| mode | gold answer has full reward | answer plus one has none but its format's |")
    print("|---|---|---|")
    for name, found in agreement(problems).items():
        print(f"| `{name}` | {found.right:.2%} | {found.refused:.2%} |")


def compare_batches(
    folder: Path, url: str, problems: Sequence[Problem], name: str, batches: int, options: argparse.Namespace
) -> None:
    """Requests of 64 items against a plain loop over the same items, and two services on two ports."""
    items = make_items(problems, BATCH * batches)
    requests = [
        request("/v1/score", body(items[start : start + BATCH])) for start in range(0, len(items), BATCH)
    ]
    function = rule(name)
    expected = [function(item) for item in items]
    scorers = f"scorers = {{ {name} = 1.0 }}"
    with service(folder, url, scorers) as one, service(folder, url, scorers) as other:
        got = [
            result["reward"] for answer in send([one], requests, 1).answers for result in results(answer.body)
        ]
        assert got == expected, "the service and the loop do the same"
        contenders: dict[str, Callable[[], float]] = {
            "plain loop": lambda: seconds_of(lambda: [function(item) for item in items])
        }
        for ports, connections in (([one], 1), ([one], 4), ([one, other], 4)):
            who = "service" if len(ports) == 1 else "two services"
            contenders[f"{who}, {connections} requests at a time"] = sender(ports, requests, connections)
        rates = in_turn(contenders, len(items), options.rounds)
    characters = statistics.mean(len(item.response) for item in items)
    print(f"\n`{name}`, {batches} requests of {BATCH} items, {characters:.0f} characters in a response\n")
    print_rates(rates, "items/s", "plain loop", "target 0.6")


def compare_single(folder: Path, url: str, problems: Sequence[Problem], options: argparse.Namespace) -> None:
    """One-item requests, 64 at a time, against a FastAPI application that only echoes them."""
    items = make_items(problems, options.requests)
    bodies = [body([item]) for item in items]
    with service(folder, url, "scorers = { gsm8k_reward_fn = 1.0 }") as port, echo() as echo_port:
        paths = {
            "FastAPI echo, typed": (echo_port, "/typed"),
            "FastAPI echo, untyped": (echo_port, "/untyped"),
            "service": (port, "/v1/score"),
        }
        contenders = {}
        for name, (its_port, path) in paths.items():
            requests = [request(path, content) for content in bodies]
            contenders[name] = sender([its_port], requests, options.concurrent)
        rates = in_turn(contenders, len(items), options.rounds)
    print(f"\n{len(items)} requests of one item, {options.concurrent} at a time, `gsm8k_reward_fn`\n")
    print_rates(rates, "requests/s", "FastAPI echo, typed", "target 0.5")


def compare_neural(
    folder: Path, url: str, hidden: int, layers: int, median: int, options: argparse.Namespace
) -> None:
    """Requests of one text, 64 at a time, against sorted batches and against one text after the other."""
    path = write_model(folder / f"model-{hidden}-{layers}", hidden, layers)
    items = make_texts(options.texts, median)
    requests = [request("/v1/score", body([item])) for item in items]
    torch.set_num_threads(options.threads)
    bare = Bare(path)
    alone = bare.score(items, 1)
    reward = f'[reward.scorers.rm]\nkind = "neural"\npath = "{path}"\nprompt_as = "text"\n'
    with service(folder, url, reward, options.threads) as port:
        answers = send([port], requests, options.concurrent).answers
        rewards = [results(answer.body)[0]["reward"] for answer in answers]
        torch.testing.assert_close(torch.tensor(rewards), torch.tensor(alone), atol=1e-4, rtol=1e-4)
        contenders: dict[str, Callable[[], float]] = {
            f"bare, sorted batches of {rows}": partial(seconds_of, partial(bare.score, items, rows))
            for rows in (8, 16, 32, 64)
        }
        contenders["bare, unbatched"] = partial(seconds_of, partial(bare.score, items, 1))
        contenders["service"] = sender([port], requests, options.concurrent)
        rates = in_turn(contenders, len(items), options.rounds)
    tokens = [item.response.count(" ") + 1 for item in items]
    print(
        f"\n{bare.parameters / 1e6:.1f} M parameters (hidden {hidden}, {layers} layers), {len(items)} texts "
        f"of {min(tokens)} to {max(tokens)} tokens, median {statistics.median(tokens):.0f}, float32, "
        f"{options.threads} threads, {options.concurrent} requests at a time\n"
    )
    bound = fastest(rates, [name for name in rates if name.startswith("bare, sorted")])
    print_rates(rates, "texts/s", bound, "target 0.8")
    print(f"\nservice / unbatched: {ratio(rates, 'service', 'bare, unbatched'):.2f} (target 4)")
    print(f"{bound} / unbatched: {ratio(rates, bound, 'bare, unbatched'):.2f}")


def compare_hanging(folder: Path, url: str, problems: Sequence[Problem], options: argparse.Namespace) -> None:
    """Latency of sound items while 1 % of the items never end, and without those."""
    items = make_items(problems, options.hanging_requests)
    sound = [request("/v1/score", body([item])) for item in items]
    endless = request("/v1/score", body([ScoreItem(response=HANGS, ground_truth="2")]))
    mixed = [endless if is_endless(place) else one for place, one in enumerate(sound)]
    reward = "[reward.scorers.math_verify]\ndeadline_seconds = 2.0\n"
    print(
        f"\n`math_verify`, {len(sound)} requests of one item, deadline 2 s, {options.rounds} rounds; in ms\n"
    )
    print("| at a time | sound items/s | p50 | p50, 1 % hanging | p99 | p99, 1 % hanging | ratio, target 2 |")
    print("|---|---|---|---|---|---|---|")
    with service(folder, url, reward) as port:
        checked(send([port], sound[:200], 16))
        for connections in options.hanging_concurrent:
            rounds: dict[str, list[list[float]]] = {"sound": [], "mixed": []}
            rates = []
            for _ in range(options.rounds):
                load = checked(send([port], sound, connections))
                rates.append(load.rate)
                rounds["sound"].append([answer.seconds for answer in load.answers])
                rounds["mixed"].append(sound_seconds(send([port], mixed, connections)))
            cells = [f"{connections}", f"{statistics.median(rates):,.0f}"]
            for share in (0.5, 0.99):
                alone, beside = (
                    statistics.median(quantile(taken, share) * 1e3 for taken in rounds[kind])
                    for kind in ("sound", "mixed")
                )
                cells += [f"{alone:.1f}", f"{beside:.1f}"]
            print(f"| {' | '.join(cells)} | {beside / alone:.2f} |")


def sound_seconds(load: Load) -> list[float]:
    """Latencies of the items that ended, after a look at whether exactly the others timed out."""
    taken = []
    for place, answer in enumerate(load.answers):
        status = results(answer.body)[0]["status"]
        assert status == ("timeout" if is_endless(place) else "ok"), f"item {place}: {answer.body!r}"
        if status == "ok":
            taken.append(answer.seconds)
    return taken


def is_endless(place: int) -> bool:
    """One item in a hundred."""
    return place % 100 == 50


def sender(ports: Sequence[int], requests: Sequence[bytes], connections: int) -> Callable[[], float]:
    """A contender that sends the requests and looks at the answers, the latter off the clock."""
    return lambda: checked(send(ports, requests, connections)).seconds


def checked(load: Load) -> Load:
    """The same, if every answer is good."""
    for answer in load.answers:
        assert answer.status == 200, answer.body
        assert b'"status":"ok"' in answer.body or b'"results"' not in answer.body, answer.body
    return load


def results(answer: bytes) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(answer)["results"]
    return found


def shape(text: str) -> tuple[int, int, int]:
    """`256x4x32` is hidden size, layers, and median length of the texts."""
    hidden, layers, median = map(int, text.split("x"))
    return hidden, layers, median


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reward", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=FIGURES, help="figures; default: all")
    parser.add_argument("--gsm8k", type=Path, default=GSM8K, help="folder with train.jsonl and test.jsonl")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of torch")
    parser.add_argument("--concurrent", type=int, default=64, help="requests at a time (default 64)")
    parser.add_argument("--requests", type=int, default=3000, help="of one item")
    parser.add_argument("--texts", type=int, default=512, help="for the reward model")
    parser.add_argument("--shapes", type=shape, nargs="+", default=SHAPES, help="HIDDENxLAYERSxMEDIAN")
    parser.add_argument("--hanging-requests", type=int, default=1000)
    parser.add_argument("--hanging-concurrent", type=int, nargs="+", default=[8, 64])
    return parser.parse_args()


if __name__ == "__main__":
    main()
