"""Texts out of what trainers send: end tokens, and where a response begins."""

import pytest

from services.reward.compat.texts import after_prompt, without_end

ENDS = ("<|im_end|>", "</s>")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", "a"),
        ("a  ", "a  "),
        ("a </s>", "a "),
        ("a </s> <|im_end|>\n", "a "),
        ("a</s>b", "a</s>b"),
        ("</s>", ""),
        ("", ""),
    ],
)
def test_end_tokens_go_and_other_space_stays(text: str, expected: str) -> None:
    assert without_end(text, ENDS) == expected


def test_any_number_of_end_tokens_is_taken_off_at_once() -> None:
    assert without_end("a" + "</s>" * 200_000, ENDS) == "a"
    assert without_end("a" + "</s> <|im_end|>\n" * 50_000, ENDS) == "a"


def test_a_prompt_that_was_cut_is_found_and_a_huge_one_is_searched_in_part() -> None:
    prompt = "x" * 2_000_000 + "and the end of a long prompt"
    assert after_prompt("the end of a long prompt: abc", prompt) == ": abc"
    assert after_prompt("y" * 2_000_000, prompt) is None
