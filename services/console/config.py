"""The `[console]` table: how the local stack is started and stopped."""

from pydantic import Field

from shared.config import Settings, Table


class ConsoleConfig(Table):
    learner_threads: int | None = Field(default=None, ge=1)
    """CPU threads of each learner rank (OMP_NUM_THREADS); torch's own choice if not set."""
    reward_threads: int = Field(default=1, ge=1)
    """CPU threads of the reward service."""
    ready_timeout: float = Field(default=300.0, gt=0)
    """Seconds a service may take to answer after its start."""
    stop_timeout: float = Field(default=30.0, gt=0)
    """Seconds a service is given to finish before it is killed."""
    max_restarts: int = Field(default=5, ge=0)
    """How often a dead rollout, reward or Redis process is started again before the run is given up."""


class ConsoleSettings(Settings):
    console: ConsoleConfig = ConsoleConfig()
