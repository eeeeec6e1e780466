"""What people read in the learner's log."""

from services.learner.lines import evaluation_line, step_line

STEP = {
    "step": 3,
    "reward/mean": 5.5,
    "objective/kl": 0.25,
    "staleness/mean": 0.5,
    "time/step": 2.0,
    "tokens/generated_per_second": 1700.0,
    "tokens/trained_per_second": 1500.0,
}
EVALUATION = {
    "step": 3,
    "eval/heldout/greedy/accuracy": 0.75,
    "eval/heldout/sampled/accuracy": 0.5,
    "eval/heldout/prompts": 1024,
}


def test_a_step_is_one_line() -> None:
    assert step_line(STEP) == (
        "step 3  reward 5.500  kl 0.2500  staleness 0.50  2.00 s  1,700 tokens/s generated, 1,500 trained"
    )


def test_an_evaluation_says_how_many_prompts_it_is_of() -> None:
    assert evaluation_line(EVALUATION) == (
        "held-out accuracy after step 3: greedy 0.750, sampled 0.500 (1,024 prompts)"
    )


def test_an_evaluation_of_several_datasets_names_each() -> None:
    line = evaluation_line(EVALUATION | {"eval/gsm8k/greedy/accuracy": 0.125, "eval/gsm8k/prompts": 64})
    assert line.endswith("sampled 0.500, gsm8k greedy 0.125 (heldout 1,024, gsm8k 64 prompts)")
