"""The `[reward.scorers.NAME]` table of a neural scorer."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from services.reward.protocol import Context, Scorer, ScorerConfig
from services.reward.steps import Aggregation
from shared.config import Table

Architecture = Literal[
    "sequence_classification", "colossalchat", "llamafactory", "token_classification", "causal_lm_steps"
]
STEPWISE = ("token_classification", "causal_lm_steps")
"""Process reward models: one score per step of the response."""


class StepsConfig(Table):
    """How a process reward model reads a response."""

    separator: str = Field(default="\n\n", min_length=1)
    """Where one step ends and the next begins in the response."""
    marker: str = Field(default="\n", min_length=1)
    """Put after each step; the score is read at its last token. That of the model's training."""
    good_token: str = "+"
    bad_token: str = "-"
    """Of `causal_lm_steps`: a step's score is p(good) / (p(good) + p(bad)) for the token after the marker."""
    aggregation: Aggregation = "min"
    """From the scores of steps to the one that enters the reward."""


class NeuralConfig(ScorerConfig):
    """A reward model that this service runs."""

    kind: Literal["neural"] = "neural"
    path: Path
    """A local model folder with its tokenizer and safetensors weights."""
    architecture: Architecture = "sequence_classification"
    adapter: Path | None = None
    """A LoRA adapter (PEFT) on the model at `path`. Scorers on the same `path` share it in memory."""
    device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    """`auto` takes a GPU if there is one."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the model's weights and work; the last, linear step is in float32 always."""
    prompt_as: Literal["messages", "user_message", "text"] = "messages"
    """`messages`: the conversation in metadata "messages", in the reward model's own chat template; an item
    without is `invalid`. `user_message`: the same, but where there are no messages the prompt's text is one
    user's turn; right only where that text is not in the policy's chat template already. `text`: prompt and
    response as they stand, without any template."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Longest input; without it the model's own limit, but no more than `max_batch_tokens`."""
    too_long: Literal["invalid", "truncate_left"] = "invalid"
    """What becomes of a longer input. Nothing is cut unless this says so."""
    max_batch_tokens: int = Field(default=16384, ge=1)
    """Size of one batch, padding included."""
    max_wait_ms: float = Field(default=5.0, ge=0)
    """How long a lone item waits for others to share its batch."""
    steps: StepsConfig = StepsConfig()
    deadline_seconds: float | None = Field(default=60.0, gt=0)
    """How long the batch that an item is in may take."""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.max_tokens is not None and self.max_tokens > self.max_batch_tokens:
            raise ValueError(
                f"max_tokens = {self.max_tokens} does not fit max_batch_tokens = {self.max_batch_tokens}"
            )
        if self.too_long == "truncate_left" and self.architecture in STEPWISE:
            raise ValueError("too_long = 'truncate_left' would lose the scores of steps; leave it out")
        if self.architecture == "colossalchat" and self.adapter is not None:
            raise ValueError("architecture 'colossalchat' has no adapters")
        return self

    def build(self, name: str, context: Context) -> Scorer:
        """Raises:
        ValueError: the model cannot be loaded, or what loads it is not installed.
        """
        try:
            from services.reward.neural.scorer import NeuralScorer
        except ImportError as error:
            raise ValueError(
                f"scorer {name!r} needs {error.name}; install it: pip install 'rollstream[reward-neural]'"
            ) from error
        return NeuralScorer(name, self)
