"""Where prompts come from."""

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
