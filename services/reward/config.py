"""The `[reward]` table."""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, SerializeAsAny, ValidationInfo, field_validator, model_validator

from services.reward.composition import CompositionConfig
from services.reward.kinds import parse_scorer
from services.reward.math_answer import Tags
from services.reward.pool import PoolConfig
from services.reward.protocol import ScorerConfig
from shared.config import Settings, Table

TOKEN_VARIABLE = "ROLLSTREAM_REWARD_TOKEN"
"""Environment variable of the bearer token for every route but `/health` and `/ready`, where it is set."""
WATCH_TOKEN_VARIABLE = "ROLLSTREAM_REWARD_WATCH_TOKEN"
"""Environment variable of a second token, for `GET /metrics`, `/v1/scorers` and `/openapi.json` only."""

END_TOKENS = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<|return|>",
    "<end_of_turn>",
    "<eos>",
    "</s>",
    "<pad>",
    "<｜end▁of▁sentence｜>",
)


class RewardConfig(Table):
    host: str = "127.0.0.1"
    """Address to listen on. Any but a loopback address needs a token in `ROLLSTREAM_REWARD_TOKEN`."""
    port: int = Field(default=8001, ge=0, le=65535)
    """0 takes any free port."""
    tags: Tags = Tags()
    """The texts that frame thought and answer, for scorers that look for them."""
    scorers: dict[str, SerializeAsAny[ScorerConfig]] = Field(
        default={"gsm8k_reward_fn": 1.0}, min_length=1, validate_default=True
    )
    """The scorers by name: `NAME = WEIGHT` for a rule as it comes, or a table `[reward.scorers.NAME]`."""
    composition: CompositionConfig = CompositionConfig()
    deadline_seconds: float = Field(default=5.0, gt=0)
    """How long one item may take one scorer; then its status is `timeout`. A scorer may have its own."""
    pool: PoolConfig = PoolConfig()
    concurrent_groups: int = Field(default=32, ge=1, le=1024)
    """Groups from the stream that are scored at the same time; a slow one holds up no other."""
    max_attempts: int = Field(default=3, ge=1)
    """A group whose scoring fails this often is moved to the dead stream with its cause."""
    retry_seconds: float = Field(default=0.2, ge=0)
    """Pause before a failed group's second attempt; it doubles with each further one."""
    max_response_characters: int = Field(default=65536, ge=1)
    """A longer response is `invalid`."""
    max_items: int = Field(default=1024, ge=1)
    """Items in one request; more are refused with 413."""
    max_body_bytes: int = Field(default=64 * 2**20, ge=1)
    """Size of one request; a larger one is refused with 413."""
    max_held_bytes: int = Field(default=512 * 2**20, ge=1)
    """Bytes of the bodies of all requests being served; one that would exceed it gets 429."""
    body_seconds: float = Field(default=30.0, gt=0)
    """How long a request may take to send its body; then it gets 408."""
    request_seconds: float = Field(default=110.0, gt=0)
    """How long the items of one request may take together, waiting included; what is not done then is a
    `timeout`. Trainers wait 120 s and more."""
    max_text_characters: int = Field(default=4 * 2**20, ge=1)
    """Length of a prompt or ground truth; a request with a longer one is refused with 422."""
    max_requests_per_second: float | None = Field(default=None, gt=0)
    """Requests of one address, up to a second's worth at once; more get 429. Without it there is no limit."""
    max_waiting_requests: int = Field(default=4096, ge=1)
    """Requests being served at a time; further ones get 429."""
    request_threads: int = Field(default=64, ge=1)
    """Requests at work at a time where each takes a thread, as long ones do, those of other contracts than
    `/v1/score`, and those for rules of the pool."""
    end_tokens: tuple[str, ...] = END_TOKENS
    """Texts cut off the end of responses that come with their special tokens, as from OpenRLHF and slime; an
    empty list keeps them, for a reward model that was trained to read them."""

    @field_validator("scorers", mode="before")
    @classmethod
    def _parse_scorers(cls, scorers: Any, info: ValidationInfo) -> Any:
        if not isinstance(scorers, Mapping) or "tags" not in info.data:
            return scorers  # pydantic tells what is wrong with the table, or has told it of the tags
        return {name: parse_scorer(name, written, info.data["tags"]) for name, written in scorers.items()}

    @model_validator(mode="after")
    def _composes_its_scorers(self) -> Self:
        self.composition.check(self.scorers)
        return self


class RewardSettings(Settings):
    reward: RewardConfig = RewardConfig()
