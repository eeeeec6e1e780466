"""Where prompts come from and how completions are drawn."""

from pathlib import Path

from pydantic import Field

from shared.config import Table


class DataConfig(Table):
    prompts: Path
    """JSONL file of training prompts: `messages` or `question`, and `ground_truth` or `answer`."""
    heldout: Path | None = None
    """JSONL file of held-out prompts for evaluation; none means no evaluation."""
    max_prompt_tokens: int = Field(default=512, ge=1)
    """Longer prompts are left out, and counted."""
    completions_per_prompt: int = Field(default=4, ge=1)
    max_new_tokens: int = Field(default=256, ge=1)
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Below 1, rollout log-probabilities are renormalised over the kept tokens and the learner's are not."""
