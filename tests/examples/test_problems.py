import json
import re
from pathlib import Path

import pytest

from examples.arithmetic.problems import (
    first_problems,
    is_solved,
    problems_to_practise,
    split_of,
    write_prompts,
)
from services.reward.rules.colossalchat import TaggedConfig, gsm8k_reward_fn
from shared.scoring import ScoreItem


def reward(response: str, ground_truth: str) -> float:
    item = ScoreItem(response=response, ground_truth=ground_truth)
    return gsm8k_reward_fn(item, TaggedConfig(rule="gsm8k_reward_fn"))


def test_the_split_of_a_question_never_changes() -> None:
    assert split_of("Tom has 14 pens, loses 9, buys 3. How many?") == "train"
    assert split_of("Zoe has 11 nuts, gets 8, gives 4. How many?") == "heldout"


def test_train_and_heldout_questions_are_different_and_the_same_each_time() -> None:
    train, heldout = problems_to_practise(4096), first_problems("heldout", 1024)
    questions = {row.question for row in train} | {row.question for row in heldout}
    assert len(questions) == 4096 + 1024
    assert all(split_of(row.question) == "train" for row in train)
    assert all(split_of(row.question) == "heldout" for row in heldout)
    assert heldout == first_problems("heldout", 1024) and train == problems_to_practise(4096)


def test_three_in_four_problems_to_practise_and_half_of_the_heldout_ones_have_two_steps() -> None:
    for rows, share in [(problems_to_practise(4096), 0.75), (first_problems("heldout", 1024), 0.5)]:
        assert sum(row.steps == 2 for row in rows) / len(rows) == pytest.approx(share, abs=0.04)


def test_workings_are_right_within_range_and_say_what_the_question_asks() -> None:
    lengths = set()
    for row in first_problems("train", 2000):
        workings = re.findall(r"(\d+)([+-])(\d+)=(\d+)", row.solution)
        lengths.add(len(workings))
        for left, sign, right, result in workings:
            assert int(left) + int(sign + right) == int(result) >= 0
            assert 2 <= int(right) <= 9
        asked = re.findall(r"\d+", row.question)
        assert asked == [workings[0][0], *(right for _, _, right, _ in workings)]
        assert 10 <= int(workings[0][0]) <= 19
        assert workings[-1][3] == row.answer
    assert lengths == {1, 2}


def test_every_solution_earns_full_marks() -> None:
    for row in first_problems("heldout", 1024):
        assert is_solved(row.solution, row.answer)
        assert reward(row.solution, row.answer) == 10.0


@pytest.mark.parametrize(
    "response",
    [
        "<think>14-9=5</think><answer>6</answer>",
        "<think>14-9=5</think><answer>5</answer> ",
        "<think>14-9=5</think><answer>5</answer></answer>",
        "<think>14-9=5</think><answer></answer>",
        "<think>14-9=5<answer>5</answer>",
        "<answer>5</answer><think>14-9=5</think>",
        "<answer>5</answer>",
        "5",
        "",
    ],
)
def test_a_wrong_or_badly_formed_response_is_not_solved(response: str) -> None:
    assert not is_solved(response, "5")
    assert reward(response, "5") < 10.0


def test_text_before_and_between_the_blocks_is_allowed() -> None:
    response = "Well: <think></think> so <answer> 5 </answer>"
    assert is_solved(response, "5")
    assert reward(response, "5") == 10.0


def test_prompt_rows_hold_messages_and_ground_truth_and_no_solution(tmp_path: Path) -> None:
    rows = first_problems("train", 50)
    write_prompts(tmp_path / "train.jsonl", rows)
    lines = (tmp_path / "train.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"messages": [{"role": "user", "content": row.question}], "ground_truth": row.answer} for row in rows
    ]
