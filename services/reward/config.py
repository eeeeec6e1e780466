"""The `[reward]` table."""

from pydantic import Field, FiniteFloat, field_validator

from services.reward.math_answer import Tags
from services.reward.rules import find_rule
from shared.config import Settings, Table

TOKEN_VARIABLE = "ROLLSTREAM_REWARD_TOKEN"
"""Environment variable of the bearer token that `/v1` asks for, when it is set."""


class RewardConfig(Table):
    host: str = "127.0.0.1"
    """Address to listen on. Any but a loopback address needs a token in `ROLLSTREAM_REWARD_TOKEN`."""
    port: int = Field(default=8001, ge=0, le=65535)
    """0 takes any free port."""
    scorers: dict[str, FiniteFloat] = Field(default={"gsm8k_reward_fn": 1.0}, min_length=1)
    """Weight of each scorer; the reward is the weighted sum. Weight 0 reports the component only."""
    tags: Tags = Tags()
    """The texts that frame thought and answer, for scorers that look for them."""
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

    @field_validator("scorers")
    @classmethod
    def _scorers_exist(cls, scorers: dict[str, float]) -> dict[str, float]:
        for name in scorers:
            find_rule(name)
        return scorers


class RewardSettings(Settings):
    reward: RewardConfig = RewardConfig()
