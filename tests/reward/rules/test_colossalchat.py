"""ColossalChat's rewards against the values measured on its own code."""

import pytest

from services.reward.protocol import Unscorable
from tests.reward.rules.asking import answer, ask, configure, tokens

pytest.importorskip("math_verify")


@pytest.mark.parametrize(
    ("inside", "truth", "gsm8k", "competition"),
    [
        ("18", "18", 10, 10),
        (" 18 ", "18", 10, 10),
        ("\n18\n", "18", 10, 10),
        ("19", "18", 1, 1),
        ("1,000", "1000", 0, 1),
        ("$18", "18", 0, 1),
        ("18 apples", "18", 0, 1),
        ("18.0", "18", 0, 1),
        (r"\boxed{18}", "18", 0, 1),
        ("", "18", 0, 1),
        ("1_000", "1000", 1, 1),
        ("+18", "18", 1, 1),
        ("018", "18", 1, 1),
        ("\uff11\uff18", "18", 1, 1),
        ("-3", "-3", 10, 10),
        ("- 3", "-3", 0, 10),
        ("1 8", "18", 0, 10),
        ("18", "1 8", 10, 10),
        ("18", "18.0", 1, 1),
        ("1/2", "1/2", 0, 10),
        (r"\frac{1}{2}", r"\frac{1}{2}", 0, 10),
        (r"\frac{1}{2}", r"\frac12", 0, 1),
        ("X + 1", "x+1", 0, 10),
        ("1\n8", "18", 0, 1),
    ],
)
def test_the_table_of_answers(inside: str, truth: str, gsm8k: float, competition: float) -> None:
    assert ask("gsm8k_reward_fn", answer(inside), truth) == gsm8k
    assert ask("math_competition_reward_fn", answer(inside), truth) == competition


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        (answer("18") + "\n", 0),
        (answer("18") + " Done.", 0),
        ("Let me see. " + answer("18"), 10),
        ("<think>r</think> so <answer>18</answer>", 10),
        ("<think></think><answer>18</answer>", 10),
        ("<answer>18</answer>", 0),
        ("<think>r</think><answer>18", 0),
        ("<think>r</think><answer>18</answer><answer>18</answer>", 0),
        ("<think>r</think><think>r</think><answer>18</answer>", 0),
        ("<answer>18</answer><think>r</think>", 0),
        ("<think><answer>18</answer></think>", 0),
        ("<THINK>r</THINK><ANSWER>18</ANSWER>", 0),
        ("<think>r</think>< answer>18</answer>", 0),
        ("<think>I must write <answer> first</think><answer>18</answer>", 0),
    ],
)
def test_the_format_must_be_exact(response: str, reward: float) -> None:
    assert ask("math_competition_reward_fn", response, "18") == reward
    assert ask("math_reward_fn", response, "18") == reward
    assert ask("format_reward_fn", response) == float(reward == 10)


EQUAL = [
    ("1,000", "1000"),
    ("18.0", "18"),
    ("$18", "18"),
    ("18 apples", "18"),
    (r"18\%", "18"),
    (r"18\text{ cm}", "18"),
    (r"\boxed{18}", "18"),
    (r"50\%", ".5"),
    ("1/2", ".5"),
    ("x+1", "1+x"),
    ("A", "a"),
]
UNEQUAL = [("18 dollars", "18"), ("0.333", "1/3"), ("", "18"), ("19", "18")]


@pytest.mark.parametrize(("inside", "truth"), EQUAL)
def test_equal_mathematics_gets_ten_points(inside: str, truth: str) -> None:
    assert ask("math_reward_fn", answer(inside), truth) == 10
    assert ask("boxed_math_reward_fn", rf"So \boxed{{{inside}}}.", truth) == 10


@pytest.mark.parametrize(("inside", "truth"), UNEQUAL)
def test_unequal_mathematics_gets_none(inside: str, truth: str) -> None:
    assert ask("math_reward_fn", answer(inside), truth) == 0
    assert ask("boxed_math_reward_fn", rf"So \boxed{{{inside}}}.", truth) == 0


def test_the_last_box_counts_and_must_be_closed() -> None:
    assert ask("boxed_math_reward_fn", r"\boxed{1} no, \boxed{\frac{1}{2}}", "1/2") == 10
    assert ask("boxed_math_reward_fn", r"\boxed{18} no, \boxed{19", "18") == 0
    assert ask("boxed_math_reward_fn", "18", "18") == 0


def test_the_boxed_rule_may_ask_for_tags_too() -> None:
    response = r"<think>r</think><answer>\boxed{18}</answer>"
    assert ask("boxed_math_reward_fn", response, "18", format="boxed_and_tags") == 10
    assert ask("boxed_math_reward_fn", r"\boxed{18}", "18", format="boxed_and_tags") == 0


@pytest.mark.parametrize(("inside", "count", "reward"), [
    ("18", 20, 10.0), ("18", 21, 9.5), ("18", 35, 2.5), ("19", 35, -7.5), ("18", 39, 0.5), ("18", 40, 0.0),
    ("19", 40, 0.0),
])  # fmt: skip
def test_long_answers_cost_points_and_cut_off_ones_get_none(inside: str, count: int, reward: float) -> None:
    limits = {"max_new_tokens": 40, "soft_punishment_tokens": 20}
    for name, response in (
        ("math_reward_fn", answer(inside)),
        ("boxed_math_reward_fn", rf"\boxed{{{inside}}}"),
    ):
        assert ask(name, response, "18", tokens(count), **limits) == pytest.approx(reward)
    assert ask("math_reward_fn", "no answer", "18", tokens(35), **limits) == 0, "nothing to punish"


@pytest.mark.parametrize("told", [None, {}, {"completion_tokens": "7"}, {"completion_tokens": True}, 7])
def test_a_limit_in_tokens_needs_their_number(told: object) -> None:
    with pytest.raises(Unscorable, match="completion_tokens"):
        ask("math_reward_fn", answer("18"), "18", {"rollstream": told}, max_new_tokens=40)


@pytest.mark.parametrize("truth", [None, "", "  "])
@pytest.mark.parametrize(
    "name", ["gsm8k_reward_fn", "math_competition_reward_fn", "math_reward_fn", "boxed_math_reward_fn"]
)
def test_without_a_ground_truth_there_is_no_reward_not_even_zero(name: str, truth: str | None) -> None:
    with pytest.raises(Unscorable, match="ground_truth"):
        ask(name, answer("18"), truth)


def test_limits_that_contradict_one_another_are_refused() -> None:
    with pytest.raises(ValueError, match="needs a max_new_tokens that is not smaller"):
        configure("math_reward_fn", max_new_tokens=10, soft_punishment_tokens=20)
