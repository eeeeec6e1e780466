"""Word problems about small sums: the self-contained task that the demo trains on.

A question is `Tom has 14 pens, loses 9, buys 3. How many?`; the answer a model is taught to give is
`<think>14-9=5 5+3=8</think><answer>8</answer>`. The first number is 10 to 19, the others 2 to 9, and no
running total is below zero.
"""

import itertools
import json
import random
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Split = Literal["train", "heldout"]

NAMES = ("Tom", "Ann", "Ben", "Eva", "Max", "Lea", "Sam", "Zoe")
ITEMS = ("pens", "nuts", "eggs", "cups", "hats", "keys", "figs", "toys")
GAINS = ("buys", "gets", "finds")
LOSSES = ("loses", "sells", "gives")
HELDOUT_SHARE = 20
"""One question in this many belongs to the held-out split."""

_FULL_FORM = re.compile(r".*<think>.*</think>.*<answer>(.*)</answer>", re.DOTALL)
_TAGS = ("<think>", "</think>", "<answer>", "</answer>")


@dataclass(frozen=True)
class Problem:
    """One question with its worked solution and the answer, a whole number written in digits."""

    question: str
    solution: str
    answer: str

    @property
    def steps(self) -> int:
        """One or two: how many sums lead to the answer."""
        return self.solution.count("=")


def split_of(question: str) -> Split:
    """The split a question belongs to: a hash of its text alone, so it is the same everywhere."""
    return "heldout" if zlib.crc32(question.encode()) % HELDOUT_SHARE == 0 else "train"


def draw_problem(rng: random.Random) -> Problem:
    """Draw a problem of one or two steps, equally often."""
    total = rng.randint(10, 19)
    question = f"{rng.choice(NAMES)} has {total} {rng.choice(ITEMS)}"
    workings = []
    for _ in range(rng.randint(1, 2)):
        operand = rng.randint(2, 9)
        gains = rng.random() < 0.5 or operand > total
        verb = rng.choice(GAINS if gains else LOSSES)
        result = total + operand if gains else total - operand
        question += f", {verb} {operand}"
        workings.append(f"{total}{'+' if gains else '-'}{operand}={result}")
        total = result
    solution = f"<think>{' '.join(workings)}</think><answer>{total}</answer>"
    return Problem(f"{question}. How many?", solution, str(total))


def problems(split: Split, seed: int) -> Iterator[Problem]:
    """Endless different problems of one split, the same ones for the same seed."""
    rng, seen = random.Random(seed), set[str]()
    while True:
        problem = draw_problem(rng)
        if split_of(problem.question) == split and problem.question not in seen:
            seen.add(problem.question)
            yield problem


def first_problems(split: Split, count: int) -> list[Problem]:
    """The first problems of a split, the same for everyone."""
    return list(itertools.islice(problems(split, seed=0), count))


def problems_to_practise(count: int) -> list[Problem]:
    """Problems to train on, the same for everyone: three in four have two steps, which take longer to learn.

    Of the second sums there are three times as many different ones as of the first, and half the held-out
    problems need none.
    """
    one_step = itertools.count()
    train = problems("train", seed=0)
    return list(itertools.islice((p for p in train if p.steps == 2 or next(one_step) % 3 == 0), count))


def chat_of(problem: Problem) -> list[dict[str, str]]:
    """The question as chat messages."""
    return [{"role": "user", "content": problem.question}]


def write_prompts(path: Path, rows: list[Problem]) -> None:
    """Write a prompt file: one JSON object a line with `messages` and `ground_truth`, no solution."""
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps({"messages": chat_of(row), "ground_truth": row.answer}) + "\n")


def is_solved(response: str, answer: str) -> bool:
    """Whether a response earns full marks: each tag once, in order, `</answer>` last, and the right answer.

    This is the rule of the `gsm8k_reward_fn` scorer for the answers of these problems, so an accuracy counted
    with it is the share of responses with the highest reward.
    """
    form = _FULL_FORM.fullmatch(response)
    return form is not None and all(response.count(tag) == 1 for tag in _TAGS) and form[1].strip() == answer
