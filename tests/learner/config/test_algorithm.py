"""Which options of the algorithm go together, and what they are by default."""

import pytest
from pydantic import ValidationError

from services.learner.config.learner import LearnerConfig
from tests.learner.samples import changed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"advantage_estimator": "grpo", "critic_warmup_steps": 2}, "trains no critic"),
        ({"advantage_estimator": "rloo", "truncation": "bootstrap"}, "needs a critic"),
        ({"kl_coef": 0.0, "adaptive_kl": {}}, "multiplies kl_coef"),
        ({"dual_clip": 0.5}, "dual_clip"),
        ({"correction": {"mask_low": 2.0}}, "mask_low = 2.0 must be below mask_high = 2.0"),
        ({"correction": {"fresh": True, "proximal": "loglinear"}}, "fresh = true does nothing"),
        ({"score_placement": "every", "advantage_estimator": "grpo"}, "score times its length"),
        ({"score_placement": "every", "advantage_estimator": "rloo"}, "score times its length"),
        ({"kl_in": "loss"}, "use 'k2' or 'k3'"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        changed(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"score_placement": "every", "advantage_estimator": "reinforce_plus_plus"},
        {"kl_in": "loss", "kl_coef": 0.0},
    ],
)
def test_options_that_look_alike_but_fit_together_are_accepted(changes: dict[str, object]) -> None:
    assert changed(**changes)


@pytest.mark.parametrize(
    ("estimator", "whitens"),
    [
        ("gae", True),
        ("grpo", False),
        ("grpo_without_std", False),
        ("rloo", False),
        ("reinforce_plus_plus", True),
        ("reinforce_plus_plus_baseline", True),
    ],
)
def test_advantages_are_whitened_by_default_where_the_method_says_so(estimator: str, whitens: bool) -> None:
    default = changed(advantage_estimator=estimator, whiten_advantages=None)
    assert default.whitens_advantages == whitens
    for chosen in (True, False):
        assert default.model_copy(update={"whiten_advantages": chosen}).whitens_advantages == chosen


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ptx_coef": 0.5}, "ptx is not given"),
        ({"ptx": "rows.jsonl"}, "ptx is given"),
        ({"critic": {"trunk": "policy"}, "critic_warmup_steps": 3}, "train the policy's trunk too"),
        ({"advantage_estimator": "rloo", "completions_per_prompt": 1}, "compares the completions"),
    ],
)
def test_parts_of_a_run_that_do_not_fit_together_are_refused(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        LearnerConfig.model_validate({"prompts": "p.jsonl", **changes})
