"""Where metrics and sample completions are shown."""

from importlib.util import find_spec
from typing import Literal

from pydantic import Field, field_validator

from shared.config import Table

TrackerName = Literal["tensorboard", "wandb", "mlflow", "trackio"]


class TrackingConfig(Table):
    trackers: tuple[TrackerName, ...] = ("tensorboard",)
    """Where metrics go besides `metrics.jsonl`. All but `tensorboard` are installed on request."""
    log_completions_every: int = Field(default=10, ge=1)
    """Steps between files of sample completions, beside those of the first and the last step; `rollstream
    completions` shows them."""

    @field_validator("trackers")
    @classmethod
    def _installed(cls, trackers: tuple[TrackerName, ...]) -> tuple[TrackerName, ...]:
        missing = [name for name in trackers if find_spec(name) is None]
        if missing:
            raise ValueError(f"{', '.join(missing)} is not installed: pip install {' '.join(missing)}")
        return tuple(dict.fromkeys(trackers))
