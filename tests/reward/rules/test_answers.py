"""Rules that find an answer and compare it: GSM8K's modes, math-verify, choices, matches, patterns."""

import json
from pathlib import Path

import pytest

from services.reward.math_answer import answer_line, boxed_answer, final_answer
from services.reward.protocol import Unscorable
from tests.reward.rules.asking import answer, ask, configure

GSM8K = Path(__file__).parents[4] / "shared" / "data" / "gsm8k"


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        ("So 6*3 = 18", 1),
        ("So 6*3 = $18.", 1),
        ("1,234 then 18", 1),
        ("He has 20-18 apples", 1),
        ("18, that is 18.50", 0),
        ("18 19", 0),
        ("-18", 0),
        ("It is .18", 0),
        ("It is $-.18", 0),
        ("It is ...18", 1),
        ("In 1.2.18", 1),
        ("no number", 0),
        ("", 0),
    ],
)
def test_the_last_number_counts(response: str, reward: float) -> None:
    assert ask("gsm8k_last_number_reward_fn", response, "18") == reward


def test_numbers_may_have_thousands_commas_signs_and_decimals() -> None:
    assert ask("gsm8k_last_number_reward_fn", "It is 1,234,567.", "1234567") == 1
    assert ask("gsm8k_last_number_reward_fn", "It is -1,234.5 degrees", "-1234.5") == 1
    assert ask("gsm8k_last_number_reward_fn", "It is .5, or -.5", "-.5") == 1


def test_the_tag_mode_asks_for_nothing_but_the_tag() -> None:
    assert ask("gsm8k_tag_reward_fn", "Well. <answer> 1,000 </answer> Done.", "1000") == 1
    assert ask("gsm8k_tag_reward_fn", "<answer>18</answer><answer>19</answer>", "18") == 0
    assert ask("gsm8k_tag_reward_fn", "18", "18") == 0


@pytest.mark.skipif(not GSM8K.is_dir(), reason=f"the GSM8K data set is not at {GSM8K}")
def test_every_gold_answer_of_gsm8k_is_right_in_its_mode_and_one_more_is_wrong() -> None:
    texts = [(GSM8K / f"{split}.jsonl").read_text(encoding="utf-8") for split in ("train", "test")]
    lines = "".join(texts).splitlines()
    assert len(lines) == 8792
    modes = {
        "gsm8k_reward_fn": (answer, 10, 1),
        "gsm8k_tag_reward_fn": (answer, 1, 0),
        "gsm8k_strict_reward_fn": ("#### {}".format, 1, 0),
        "gsm8k_last_number_reward_fn": ("So the answer is {}.".format, 1, 0),
    }
    for line in lines:
        solution = json.loads(line)["answer"]
        number = final_answer(solution)
        for mode, (form, right, wrong) in modes.items():
            assert ask(mode, form(number), solution) == right
            assert ask(mode, form(str(int(number) + 1)), solution) == wrong
        assert ask("gsm8k_strict_reward_fn", solution, solution) == 1


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Answer: 17\nNo.\n**Answer:** $18$.", "18"),
        ("the final answer : .5", ".5"),
        ("Answer:\n18", None),
        ("18", None),
    ],
)
def test_the_last_answer_line_counts_without_its_markup(text: str, found: str | None) -> None:
    assert answer_line(text) == found


def test_an_answer_line_is_compared_as_dapo_does() -> None:
    lines = "Answer: 17\nAnswer: $\\frac{36}{2}$"
    assert ask("math_verify", lines, "18", answer_in="answer_line") == 1
    assert ask("math_verify", "It is $18$.", "18", answer_in="answer_line") == 0
    assert ask("exact_match", "Well.\nAnswer: **Paris**.", "paris", answer_in="answer_line") == 1


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        (r"\boxed{18}", "18"),
        (r"\boxed{\frac{1}{2}} and more", r"\frac{1}{2}"),
        (r"\boxed{1} \boxed{2}", "2"),
        (r"\boxed{}", ""),
        (r"\boxed{{{}}}", "{{}}"),
        (r"\boxed{1} \boxed{2", None),
        (r"\boxed 18", None),
        ("", None),
    ],
)
def test_a_box_ends_with_its_own_brace(text: str, inside: str | None) -> None:
    assert boxed_answer(text) == inside


@pytest.mark.parametrize(
    ("response", "truth", "reward"),
    [
        (r"So it is \boxed{\frac{1}{2}}", "0.5", 1),
        ("So the answer is $x+1$.", "1+x", 1),
        ("<answer>18.0</answer>", "18", 1),
        ("The final answer is 18", "So it is.\n#### 18", 1),
        (r"\boxed{(1,2)}", "(1, 2)", 1),
        (r"\boxed{\{2,1\}}", r"\{1,2\}", 1),
        (r"\boxed{19}", "18", 0),
        ("I do not know", "18", 0),
        ("", "18", 0),
    ],
)
def test_equal_mathematics_is_right_wherever_it_stands(response: str, truth: str, reward: float) -> None:
    pytest.importorskip("math_verify")
    assert ask("math_verify", response, truth) == reward


def test_the_place_of_the_answer_may_be_fixed() -> None:
    pytest.importorskip("math_verify")
    assert ask("math_verify", r"\boxed{18} or <answer>19</answer>", "18", answer_in="box") == 1
    assert ask("math_verify", r"\boxed{18} or <answer>19</answer>", "18", answer_in="tags") == 0
    assert ask("math_verify", "18", "18", answer_in="box") == 0


def test_a_ground_truth_that_is_no_mathematics_is_nobody_s_zero() -> None:
    pytest.importorskip("math_verify")
    with pytest.raises(Unscorable, match="can be read as mathematics"):
        ask("math_verify", r"\boxed{18}", "}")


@pytest.mark.parametrize(
    ("response", "truth", "reward"),
    [
        (r"\boxed{B}", "B", 1),
        (r"\boxed{\text{(b)}}", "B", 1),
        ("<answer>B) blue</answer>", "(B) blue", 1),
        ("Answer: B", "B", 1),
        ("Answer: A\nNo.\n**Answer:** B.", "A", 0),
        ("A is wrong, so the answer is: B", "B", 1),
        ("I think it must be B", "B", 1),
        ("It is B. No, C!", "B", 0),
        ("A dog's life", "B", 0),
        ("Because", "B", 0),
        ("E", "B", 0),
        ("", "B", 0),
    ],
)
def test_the_letter_chosen_is_found(response: str, truth: str, reward: float) -> None:
    assert ask("multiple_choice", response, truth) == reward


def test_choices_and_place_may_be_configured() -> None:
    assert ask("multiple_choice", "Answer: J", "J", choices="ABCDEFGHIJ") == 1
    assert ask("multiple_choice", "B", "B", answer_in="box") == 0
    with pytest.raises(Unscorable, match="begins with one of ABCD"):
        ask("multiple_choice", "B", "blue")


def test_exact_match_looks_past_case_and_white_space_as_configured() -> None:
    assert ask("exact_match", " Paris\n", "paris") == 1
    assert ask("exact_match", "Paris", "paris", ignore_case=False) == 0
    assert ask("exact_match", "New  York", "newyork", ignore_spaces=True) == 1
    assert ask("exact_match", "New York", "newyork") == 0
    assert ask("exact_match", "Straße", "STRASSE") == 1
    assert ask("exact_match", "First this.\nParis\n\n", "Paris", answer_in="last_line") == 1
    assert ask("exact_match", "no tags", "no tags", answer_in="tags") == 0


def test_fuzzy_match_is_the_share_of_common_characters() -> None:
    assert ask("fuzzy_match", "kitten", "kitten") == 1
    assert ask("fuzzy_match", "abcd", "bcde") == pytest.approx(2 * 3 / 8)
    assert ask("fuzzy_match", "xyz", "abc") == 0


def test_a_pattern_finds_or_matches_the_whole() -> None:
    assert ask("regex", "so 42 it is", pattern=r"\d+") == 1
    assert ask("regex", "so 42 it is", pattern=r"\d+", whole=True) == 0
    assert ask("regex", "so 42 it is", pattern="^x", found=2.0, missing=-1.0) == -1
    assert ask("regex", "<answer>42</answer>", pattern=r"\d+", whole=True, answer_in="tags") == 1
    assert ask("regex", "\ud800 and é", pattern="é$") == 1


@pytest.mark.parametrize("pattern", ["(", r"(?=x)", r"(a)\1", "a{1000000}"])
def test_a_pattern_that_cannot_be_used_in_linear_time_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="RE2 cannot use the pattern"):
        configure("regex", pattern=pattern)
