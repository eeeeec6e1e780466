"""Where a run's metrics go besides `metrics.jsonl`: TensorBoard, and on request W&B, MLflow and Trackio."""

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

from services.learner.config.tracking import TrackerName

PROJECT = "rollstream"
"""Project or experiment that runs are filed under."""

CLOSE_SECONDS = 60.0
"""How long the end of a run waits for trackers."""

log = logging.getLogger("rollstream.tracking")


class Tracker(Protocol):
    def log(self, metrics: Mapping[str, float], step: int) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files in `tensorboard/`. After a resume, what was logged past that step is hidden."""

    def __init__(self, run: Path, config: Mapping[str, Any], resumed_at: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        purge_step = None if resumed_at is None else resumed_at + 1
        self._writer = SummaryWriter(str(run / "tensorboard"), purge_step=purge_step)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class WandB:
    """A W&B run. The usual variables hold: WANDB_API_KEY, WANDB_MODE=offline, WANDB_ENTITY and so on."""

    def __init__(self, run: Path, config: Mapping[str, Any], resumed_at: int | None) -> None:
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run.name,
            id=_known_id(run / "wandb" / "id", resumed_at, lambda: uuid.uuid4().hex[:8]),
            resume="allow",
            dir=str(run),
            config=dict(config),
            settings=wandb.Settings(console="off"),  # it would put itself between the learner and its log
        )
        # W&B's own steps only rise, while an evaluation has the number of the step before it.
        self._run.define_metric("*", step_metric="step")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log({**metrics, "step": step})

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """An MLflow run at MLFLOW_TRACKING_URI; if that is not set, in `mlflow.db` in the run's folder."""

    def __init__(self, run: Path, config: Mapping[str, Any], resumed_at: int | None) -> None:
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self._metric = Metric
        uri = os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{(run / 'mlflow.db').resolve()}")
        self._client = MlflowClient(tracking_uri=uri)
        self._id = _known_id(run / "mlflow.id", resumed_at, lambda: self._new_run(run.name))
        if resumed_at is None:
            params = [Param(name, str(value)[:500]) for name, value in _flat(config)]
            self._client.log_batch(self._id, params=params)

    def _new_run(self, name: str) -> str:
        experiment_name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self._client.get_experiment_by_name(experiment_name)
        id = experiment.experiment_id if experiment else self._client.create_experiment(experiment_name)
        return str(self._client.create_run(id, run_name=name).info.run_id)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        named = [(name.replace("@", "_at_"), value) for name, value in metrics.items()]  # MLflow takes no @
        self._client.log_batch(self._id, [self._metric(name, float(v), now, step) for name, v in named])

    def close(self) -> None:
        self._client.set_terminated(self._id)


class Trackio:
    """A Trackio run, on this machine or in the Space that TRACKIO_SPACE_ID names."""

    def __init__(self, run: Path, config: Mapping[str, Any], resumed_at: int | None) -> None:
        import trackio

        resume = "never" if resumed_at is None else "allow"
        self._run = trackio.init(project=PROJECT, name=run.name, config=dict(config), resume=resume)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


TRACKERS: dict[TrackerName, Callable[[Path, Mapping[str, Any], int | None], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MLflow,
    "trackio": Trackio,
}


class Trackers:
    """All trackers of a run, each served by a thread of its own: neither training nor another tracker waits
    for a tracking server. One that fails gets no more, with a warning; `metrics.jsonl` has everything."""

    def __init__(
        self, names: Sequence[TrackerName], run: Path, config: Mapping[str, Any], resumed_at: int | None
    ) -> None:
        """
        Args:
            run: the run's folder.
            resumed_at: the step it goes on from, if it does.

        Raises:
            ValueError: a tracker cannot be started.
        """
        self._served: list[_Served] = []
        for name in names:
            try:
                tracker = TRACKERS[name](run, config, resumed_at)
            except Exception as error:  # each library raises its own kinds
                cause = f"the tracker {name} does not start: {error}"
                raise ValueError(f"{cause}; mend that or leave it out of learner.trackers") from error
            self._served.append(_Served(name, tracker))

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        for served in self._served:
            served.rows.put((dict(metrics), step))

    def close(self) -> None:
        """Hand over what is left, within `CLOSE_SECONDS`."""
        for served in self._served:
            served.rows.put(None)
        deadline = time.monotonic() + CLOSE_SECONDS
        for served in self._served:
            served.thread.join(max(0.0, deadline - time.monotonic()))
            if served.thread.is_alive():
                log.warning("the tracker %s has not taken all metrics in time; left behind", served.name)


class _Served:
    """A tracker, what it is still to be given, and the thread that gives it."""

    def __init__(self, name: str, tracker: Tracker) -> None:
        self.name = name
        self.rows: SimpleQueue[tuple[dict[str, float], int] | None] = SimpleQueue()
        self._tracker = tracker
        self.thread = threading.Thread(target=self._work, name=f"tracker-{name}", daemon=True)
        self.thread.start()

    def _work(self) -> None:
        try:
            while (row := self.rows.get()) is not None:
                self._tracker.log(*row)
            self._tracker.close()
        except Exception as error:  # each library raises its own kinds
            log.warning("the tracker %s fails and gets no more of this run's metrics: %r", self.name, error)


def _known_id(path: Path, resumed_at: int | None, make: Callable[[], str]) -> str:
    """The id that the tracker knows this run under: a resumed run goes on under the one it had."""
    if resumed_at is not None and path.exists():
        return path.read_text(encoding="utf-8").strip()
    id = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(id, encoding="utf-8")
    return id


def _flat(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Keys of nested tables joined by dots."""
    pairs: list[tuple[str, Any]] = []
    for key, value in table.items():
        pairs += (
            _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else [(f"{prefix}{key}", value)]
        )
    return pairs
