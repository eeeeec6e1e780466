"""The `[console]` table: how the local stack is started and stopped."""

from pydantic import Field, field_validator

from shared.config import Settings, Table


class ConsoleConfig(Table):
    learner_threads: int | None = Field(default=None, ge=1)
    """CPU threads of each learner rank (OMP_NUM_THREADS); torch's own choice if not set."""
    reward_threads: int = Field(default=1, ge=1)
    """CPU threads of the reward service."""
    gpus: dict[str, str] = Field(default={})
    """CUDA_VISIBLE_DEVICES by service, such as `{ rollout = "0", learner = "1,2" }`; others see all GPUs."""
    ready_timeout: float = Field(default=300.0, gt=0)
    """Seconds a service may take to answer after its start."""
    stop_timeout: float = Field(default=30.0, gt=0)
    """Seconds a service is given to finish before it is killed."""
    max_restarts: int = Field(default=5, ge=0)
    """How often a dead rollout, reward or Redis process is started again before the run is given up."""

    @field_validator("gpus")
    @classmethod
    def _services_exist(cls, gpus: dict[str, str]) -> dict[str, str]:
        unknown = sorted(gpus.keys() - {"rollout", "reward", "learner"})
        if unknown:
            raise ValueError(f"there is no service {unknown[0]!r}: use rollout, reward and learner")
        return gpus


class ConsoleSettings(Settings):
    console: ConsoleConfig = ConsoleConfig()
