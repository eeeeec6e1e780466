"""How the policy is evaluated on held-out prompts."""

from pydantic import Field

from shared.config import Table


class EvaluationConfig(Table):
    evaluate_every: int = Field(default=10, ge=1)
    """Steps between held-out evaluations on `evaluate_prompts` rows; the first and last use all rows."""
    evaluate_prompts: int = Field(default=256, ge=1)
    """Rows of each held-out dataset."""
    evaluate_samples: int = Field(default=1, ge=1)
    """Completions sampled for each prompt, beside the greedy one; above 1, mean@k and pass@k are reported."""
    evaluate_temperature: float = Field(default=1.0, gt=0, le=2)
    """Of the sampled completions. Everything else that shapes completions is as in training."""
    success_reward: float = 1.0
    """A held-out completion with at least this reward counts as solved."""
