"""What `benchmarks.reward` scores: GSM8K's solutions, right and wrong, or made-up ones like them."""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from benchmarks.pipeline import ROOT
from services.reward.kinds import parse_scorer
from services.reward.math_answer import Tags, final_answer
from services.reward.rules.table import RULES
from shared.scoring import ScoreItem, ScoreRequest

GSM8K = ROOT.parent / "shared" / "data" / "gsm8k"
MADE_UP = 1000

Rule = Callable[[ScoreItem], Any]


class Problem(NamedTuple):
    question: str
    solution: str
    """Ends with `#### ` and the answer."""

    @property
    def number(self) -> str:
        return final_answer(self.solution)

    @property
    def one_more(self) -> str:
        return str(int(self.number) + 1)


def read_gsm8k(folder: Path) -> list[Problem]:
    """Both splits; nothing where they are not."""
    files = [folder / f"{split}.jsonl" for split in ("test", "train")]
    lines = [line for file in files if file.exists() for line in file.read_text("utf-8").splitlines()]
    rows = [json.loads(line) for line in lines]
    return [Problem(row["question"], row["answer"]) for row in rows]


def make_up(count: int, seed: int = 0) -> list[Problem]:
    """Problems as long as GSM8K's."""
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        numbers = [draw.randrange(2, 100) for _ in range(draw.randrange(3, 9))]
        steps = [f"Box {place} adds {number} apples." for place, number in enumerate(numbers)]
        total = sum(numbers)
        solution = " ".join(steps) + f" {'+'.join(map(str, numbers))} = {total} apples.\n#### {total}"
        made.append(Problem(f"{' '.join(steps)} How many apples are there?", solution))
    return made


def make_items(problems: Sequence[Problem], count: int) -> list[ScoreItem]:
    """Responses in the tags that rules look for, every second one wrong by one."""
    items = []
    for place in range(count):
        problem = problems[place % len(problems)]
        thought = problem.solution.rpartition("####")[0].strip()
        number = problem.one_more if place % 2 else problem.number
        response = f"<think>{thought}</think><answer>{number}</answer>"
        items.append(
            ScoreItem(id=str(place), prompt=problem.question, response=response, ground_truth=problem.number)
        )
    return items


def body(items: Sequence[ScoreItem]) -> bytes:
    """Of a request to `/v1/score`."""
    return msgspec.json.encode(ScoreRequest(items=list(items)))


def rule(name: str) -> Rule:
    """The function behind a rule, with its default parameters."""
    row, config = RULES[name], parse_scorer(name, 1.0, Tags())
    return lambda item: row.function(item, config)


FORMS: Mapping[str, tuple[Callable[[str], str], float, float]] = {
    "gsm8k_reward_fn": ("<think>r</think><answer>{}</answer>".format, 10.0, 1.0),
    "gsm8k_tag_reward_fn": ("<answer>{}</answer>".format, 1.0, 0.0),
    "gsm8k_strict_reward_fn": ("#### {}".format, 1.0, 0.0),
    "gsm8k_last_number_reward_fn": ("So the answer is {}.".format, 1.0, 0.0),
}
"""Of each mode: an answer in its own format, full reward, and what a wrong answer in good format is worth."""


class Agreement(NamedTuple):
    right: float
    """Share of gold answers with full reward."""
    refused: float
    """Share of answers greater by one that are worth no more than their format."""


def agreement(problems: Sequence[Problem]) -> dict[str, Agreement]:
    """By mode, over all problems."""
    found = {}
    for name, (form, full, wrong) in FORMS.items():
        score = rule(name)

        def worth(
            problem: Problem, number: str, score: Rule = score, form: Callable[[str], str] = form
        ) -> float:
            return score(ScoreItem(response=form(number), ground_truth=problem.solution))

        right = sum(worth(problem, problem.number) == full for problem in problems)
        refused = sum(worth(problem, problem.one_more) == wrong for problem in problems)
        found[name] = Agreement(right / len(problems), refused / len(problems))
    return found
