"""Held-out metrics under names for people."""

from shared.heldout import solved_shares


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
