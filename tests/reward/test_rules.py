"""The rules against the edge cases measured on ColossalChat's `gsm8k_reward_fn`, and on GSM8K itself."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.reward.kinds import parse_scorer, rule_table
from services.reward.math_answer import Tag, Tags, final_answer, tagged_answer
from services.reward.protocol import Steps, Unscorable
from services.reward.rules.table import RULES
from shared.scoring import ScoreItem

GSM8K = Path(__file__).parents[3] / "shared" / "data" / "gsm8k"
ANY_TEXT = st.text(st.characters(exclude_categories=()))
"""Surrogates too, which `st.text()` leaves out."""


def rule(name: str, response: str, ground_truth: str | None, tags: Tags | None = None) -> float:
    config = parse_scorer(name, 1.0, tags or Tags())
    found = RULES[name].function(ScoreItem(response=response, ground_truth=ground_truth), config)
    assert not isinstance(found, Steps)
    return found


def gsm8k_reward_fn(response: str, ground_truth: str | None, tags: Tags) -> float:
    return rule("gsm8k_reward_fn", response, ground_truth, tags)


def gsm8k_strict_reward_fn(response: str, ground_truth: str | None, tags: Tags) -> float:
    return rule("gsm8k_strict_reward_fn", response, ground_truth, tags)


def answer(text: str) -> str:
    return f"<think>r</think><answer>{text}</answer>"


@pytest.mark.parametrize(
    ("inside", "ground_truth", "reward"),
    [
        ("18", "18", 10),
        (" 18 ", "18", 10),
        ("\n18\n", "18", 10),
        ("19", "18", 1),
        ("1,000", "1000", 0),
        ("$18", "18", 0),
        ("18 apples", "18", 0),
        ("18.0", "18", 0),
        (r"\boxed{18}", "18", 0),
        ("", "18", 0),
        ("1_000", "1000", 1),
        ("+18", "18", 1),
        ("018", "18", 1),
        ("\uff11\uff18", "18", 1),
        ("-3", "-3", 10),
        ("- 3", "-3", 0),
        ("1 8", "18", 0),
        ("18", "1 8", 10),
        ("18", "18.0", 1),
        ("1/2", "1/2", 0),
        (r"\frac{1}{2}", r"\frac{1}{2}", 0),
        (r"\frac{1}{2}", r"\frac12", 0),
        ("X + 1", "x+1", 0),
        ("1\n8", "18", 0),
        ("9" * 5000, "18", 0),  # past Python's limit of digits
    ],
)
def test_an_answer_in_a_good_format_is_compared_as_text(
    inside: str, ground_truth: str, reward: float
) -> None:
    assert gsm8k_reward_fn(answer(inside), ground_truth, Tags()) == reward


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        (answer("18") + "\n", 0),
        (answer("18") + " Done.", 0),
        ("Let me see. " + answer("18"), 10),
        ("<think>r</think> so <answer>18</answer>", 10),
        ("<think></think><answer>18</answer>", 10),
        ("<answer>18</answer>", 0),
        ("r</think><answer>18</answer>", 0),
        ("<think>r<answer>18</answer>", 0),
        ("<think>r</think><answer>18", 0),
        ("<think>r</think><answer>18</answer><answer>18</answer>", 0),
        ("<think>r</think><think>r</think><answer>18</answer>", 0),
        ("<answer>18</answer><think>r</think>", 0),
        ("<think><answer>18</answer></think>", 0),
        ("<THINK>r</THINK><ANSWER>18</ANSWER>", 0),
        ("<think>r</think>< answer>18</answer>", 0),
        ("<think>I must write <answer> first</think><answer>18</answer>", 0),
        ("", 0),
    ],
)
def test_the_format_must_be_exact(response: str, reward: float) -> None:
    assert gsm8k_reward_fn(response, "18", Tags()) == reward


def test_a_think_tag_that_the_prompt_already_has_is_not_asked_of_the_response() -> None:
    prefilled = Tags(think_start=Tag(text="<think>", num_occur=0))
    assert gsm8k_reward_fn("r</think><answer>18</answer>", "18", prefilled) == 10
    assert gsm8k_reward_fn(answer("18"), "18", prefilled) == 0


def test_configured_tags_find_the_answer_too() -> None:
    tags = Tags(answer_start=Tag(text="<a>"), answer_end=Tag(text="</a>"))
    assert gsm8k_reward_fn("<think>r</think><a>18</a>", "18", tags) == 10
    assert gsm8k_reward_fn("<think>r</think><a>19</a>", "18", tags) == 1
    assert gsm8k_reward_fn(answer("18"), "18", tags) == 0


def test_of_several_answers_that_are_wanted_the_last_counts() -> None:
    twice = Tags(
        answer_start=Tag(text="<answer>", num_occur=2), answer_end=Tag(text="</answer>", num_occur=2)
    )
    assert gsm8k_reward_fn("<think>r</think><answer>1</answer><answer>18</answer>", "18", twice) == 10


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        ("6*3=18\n#### 18", 1),
        ("#### 18 apples", 1),
        ("#### 4 no, #### 18", 1),
        ("#### 19", 0),
        ("####18", 0),
        ("#### $18", 0),
        ("#### 18.", 0),
        ("18", 0),
        ("", 0),
    ],
)
def test_the_strict_rule_wants_the_number_after_the_last_marker(response: str, reward: float) -> None:
    assert gsm8k_strict_reward_fn(response, "18", Tags()) == reward


def test_the_strict_rule_ignores_thousands_commas() -> None:
    for response in ("#### 1,234,567", "#### 1234567"):
        for ground_truth in ("1,234,567", "1234567", "So it is.\n#### 1,234,567"):
            assert gsm8k_strict_reward_fn(response, ground_truth, Tags()) == 1


def test_a_whole_gsm8k_solution_is_a_ground_truth() -> None:
    assert gsm8k_reward_fn(answer("1000"), "10*100=1,000\n#### 1,000", Tags()) == 10
    assert gsm8k_reward_fn(answer("1000"), "1,000", Tags()) == 1, "without a marker it stays as it is"


@pytest.mark.parametrize("ground_truth", [None, "", "  ", "no number follows ####"])
@pytest.mark.parametrize("name", ["gsm8k_reward_fn", "gsm8k_strict_reward_fn"])
def test_without_a_ground_truth_there_is_no_reward_not_even_zero(name: str, ground_truth: str | None) -> None:
    for response in (answer("18"), "nonsense"):
        with pytest.raises(Unscorable, match="ground_truth"):
            rule(name, response, ground_truth)


@pytest.mark.skipif(not GSM8K.is_dir(), reason=f"the GSM8K data set is not at {GSM8K}")
@pytest.mark.parametrize("split", ["train", "test"])
def test_every_gsm8k_solution_is_right_by_its_own_convention(split: str) -> None:
    lines = (GSM8K / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) > 1000
    for line in lines:
        solution = json.loads(line)["answer"]
        number = final_answer(solution)
        assert str(int(number)) == number
        assert gsm8k_strict_reward_fn(solution, solution, Tags()) == 1
        assert gsm8k_reward_fn(answer(number), solution, Tags()) == 10
        assert gsm8k_reward_fn(answer(number + "0"), solution, Tags()) == 1 or number == "0"


@settings(deadline=None)
@given(ANY_TEXT, ANY_TEXT.filter(str.strip), st.sampled_from(["gsm8k_reward_fn", "gsm8k_strict_reward_fn"]))
def test_no_text_makes_a_rule_raise(text: str, ground_truth: str, name: str) -> None:
    truth = ground_truth.replace("####", "").strip() or "x"
    for response in (text, answer(text), f"#### {text}", f"<answer>{text}"):
        assert rule(name, response, truth) in {0.0, 1.0, 10.0}


@settings(deadline=None)
@given(st.lists(st.sampled_from(["<answer>", "</answer>", " 1", "x"]), max_size=12).map("".join))
def test_the_answer_found_is_that_of_the_usual_regular_expression(response: str) -> None:
    matches = re.findall("<answer>(.*?)</answer>", response, re.DOTALL)
    assert tagged_answer(response, Tags()) == (matches[-1].strip() if matches else None)


def test_a_misspelt_scorer_is_told_the_right_name() -> None:
    with pytest.raises(ValueError, match="Did you mean 'gsm8k_reward_fn'"):
        rule_table("gsm8k_rewards_fn")
    with pytest.raises(ValueError, match=r"Known: .*gsm8k_strict_reward_fn"):
        rule_table("accuracy")
