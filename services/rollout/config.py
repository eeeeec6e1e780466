"""The `[rollout]` table, and the settings that the rollout service reads."""

from pathlib import Path
from typing import Literal

from pydantic import Field, HttpUrl, TypeAdapter, ValidationError, field_validator

from shared.config import Settings, Table


class RolloutConfig(Table):
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(default=8000, ge=0, le=65535)
    """0 takes any free port."""
    url: str | None = None
    """Where the learner reaches this server. If not set: http://host:port, or the address towards Redis if
    `host` is a wildcard such as 0.0.0.0."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """`auto` takes the model's own."""
    max_model_len: int | None = Field(default=None, gt=0)
    """Prompt and completion tokens together; the model's own limit if not set."""
    max_concurrent_groups: int = Field(default=64, gt=0)
    """The most prompts in flight at once, each with its n completions. How many they are follows the engine's
    load: more while it has room, fewer when completions wait or lose their place in the cache."""
    enforce_eager: bool | None = None
    """Do not compile. If not set: true on CPU, where compiling needs a C++ compiler and 15 s to gain little,
    and false on GPU."""
    threads: int = Field(default=1, gt=0)
    """CPU threads of the engine."""
    kv_cache_gib: float | None = Field(default=None, gt=0)
    """Cache for keys and values; if not set, 1 GiB on CPU and what `gpu_memory_utilization` leaves on GPU."""
    kv_cache_at_update: Literal["recompute", "keep"] = "recompute"
    """What becomes of the keys and values of completions in flight when weights change. `recompute`: their
    next tokens come from the new weights alone, at the price of computing what they have once more. `keep`:
    they go on at once, with keys and values of the old weights. Requests that come later find none of those
    in either case."""
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    tensor_parallel_size: int = Field(default=1, gt=0)
    """GPUs that share the model."""
    weights_dir: Path | None = None
    """Where weight updates are received, room for two copies of the model; /dev/shm if not set."""

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, url: str | None) -> str | None:
        try:
            TypeAdapter(HttpUrl | None).validate_python(url)
        except ValidationError as error:
            raise ValueError(f"{error.errors()[0]['msg']}; write it as http://host:8000") from error
        return url and url.rstrip("/")


class RolloutSettings(Settings):
    rollout: RolloutConfig = RolloutConfig()
