"""Held-out metrics under names for people."""

import pytest

from shared.heldout import evaluated_prompts, solved_shares, standard_errors


def test_shares_of_solved_prompts_have_short_names_and_other_metrics_are_left_out() -> None:
    metrics = {
        "step": 3,
        "eval/heldout/greedy/accuracy": 0.5,
        "eval/heldout/greedy/length": 17.0,
        "eval/heldout/sampled/accuracy": 0.25,
        "eval/heldout/sampled/mean@4": 0.25,
        "eval/heldout/sampled/pass@4": 0.75,
        "eval/heldout/missing": 0,
        "eval/gsm8k/greedy/accuracy": 0.125,
        "eval/gsm8k/sampled/pass@2": 0.5,
    }
    assert solved_shares(metrics) == {
        "greedy": 0.5,
        "sampled": 0.25,
        "sampled pass@4": 0.75,
        "gsm8k greedy": 0.125,
        "gsm8k sampled pass@2": 0.5,
    }


def test_the_standard_error_of_a_share_is_that_of_its_dataset_s_number_of_prompts() -> None:
    metrics = {
        "eval/heldout/greedy/accuracy": 0.5,
        "eval/heldout/prompts": 100,
        "eval/gsm8k/sampled/pass@2": 0.2,
        "eval/gsm8k/prompts": 16,
        "eval/unknown/greedy/accuracy": 0.5,
    }
    assert evaluated_prompts(metrics) == {"heldout": 100, "gsm8k": 16}
    errors = standard_errors(metrics)
    assert errors == pytest.approx({"greedy": 0.05, "gsm8k sampled pass@2": 0.1, "unknown greedy": 0.0})
