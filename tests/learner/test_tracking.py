"""Trackers: what they are given arrives, and one that fails never holds training up."""

import json
import logging
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from services.learner import tracking
from services.learner.config.tracking import TrackerName, TrackingConfig
from services.learner.tracking import Trackers

CONFIG = {"run": {"name": "r"}, "learner": {"kl_coef": 0.05}}
METRICS = {"loss/policy_avg": 0.5, "eval/heldout/sampled/pass@4": 0.25}
ON_REQUEST = "optional, with pip install rollstream[trackers]"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "r"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def warnings_of(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """Texts of the warnings logged, also where another test has stopped the logger's propagation."""
    texts: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: texts.append(record.getMessage())  # type: ignore[method-assign]
    tracking.log.addHandler(handler)
    yield texts
    tracking.log.removeHandler(handler)


def use(names: tuple[TrackerName, ...], run: Path, resumed_at: int | None, steps: range) -> None:
    trackers = Trackers(names, run, CONFIG, resumed_at)
    for step in steps:
        trackers.log({**METRICS, "reward/mean": float(step)}, step)
    trackers.close()


def test_tensorboard_has_each_metric_at_its_step_and_forgets_what_a_resume_undid(run: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    use(("tensorboard",), run, None, range(1, 5))
    use(("tensorboard",), run, 2, range(3, 4))
    board = EventAccumulator(str(run / "tensorboard"))
    board.Reload()
    assert {*METRICS, "reward/mean"} == set(board.Tags()["scalars"])
    assert [(e.step, e.value) for e in board.Scalars("reward/mean")] == [(1, 1.0), (2, 2.0), (3, 3.0)]


class Recorder:
    """A tracker that fails at one step."""

    rows: list[int]
    fails_at = -1

    def __init__(self, run: Path, config: Mapping[str, Any], resumed_at: int | None) -> None:
        self.rows, self.closed = [], False
        type(self).made = self

    made: "Recorder"

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        if step == self.fails_at:
            raise ConnectionError("the server is away")
        self.rows.append(step)

    def close(self) -> None:
        self.closed = True


class Failing(Recorder):
    fails_at = 2


def test_a_tracker_that_fails_is_warned_of_once_and_the_others_go_on(
    run: Path, monkeypatch: pytest.MonkeyPatch, warnings_of: list[str]
) -> None:
    monkeypatch.setitem(tracking.TRACKERS, "wandb", Failing)
    monkeypatch.setitem(tracking.TRACKERS, "mlflow", Recorder)
    use(("wandb", "mlflow"), run, None, range(1, 5))
    assert Failing.made.rows == [1] and Recorder.made.rows == [1, 2, 3, 4]
    assert Recorder.made.closed and not Failing.made.closed
    (warning,) = warnings_of
    assert "wandb" in warning and "the server is away" in warning


def test_neither_training_nor_another_tracker_waits_for_one_that_hangs(
    run: Path, monkeypatch: pytest.MonkeyPatch, warnings_of: list[str]
) -> None:
    free = threading.Event()

    class Hanging(Recorder):
        def log(self, metrics: Mapping[str, float], step: int) -> None:
            free.wait(30)

    monkeypatch.setitem(tracking.TRACKERS, "wandb", Hanging)
    monkeypatch.setitem(tracking.TRACKERS, "mlflow", Recorder)
    monkeypatch.setattr(tracking, "CLOSE_SECONDS", 1.0)
    use(("mlflow", "wandb"), run, None, range(1000))
    assert Recorder.made.rows == list(range(1000)) and Recorder.made.closed
    (warning,) = warnings_of
    assert "wandb" in warning and "left behind" in warning
    free.set()


def test_a_tracker_that_cannot_start_is_an_error_with_its_cause(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> Recorder:
        raise PermissionError("no API key")

    monkeypatch.setitem(tracking.TRACKERS, "wandb", refuse)
    with pytest.raises(ValueError, match=r"wandb does not start: no API key.*learner\.trackers"):
        Trackers(("wandb",), run, CONFIG, None)


def test_a_tracker_that_is_not_installed_is_refused_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.learner.config.tracking.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="wandb is not installed: pip install wandb"):
        TrackingConfig(trackers=("wandb",))


def test_an_unknown_tracker_is_refused() -> None:
    with pytest.raises(ValueError, match="trackio"):
        TrackingConfig.model_validate({"trackers": ["comet"]})


@pytest.mark.filterwarnings("ignore")
def test_wandb_has_the_metrics_of_all_sessions_under_one_id(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason=ON_REQUEST)
    monkeypatch.setenv("WANDB_MODE", "offline")
    use(("wandb",), run, None, range(1, 3))
    use(("wandb",), run, 2, range(3, 4))
    id = (run / "wandb" / "id").read_text()
    folders = sorted((run / "wandb").glob(f"offline-run-*-{id}"))
    assert folders, "both sessions have the id that the first was given"
    record = b"".join(
        file.read_bytes() for file in (run / "wandb").glob(f"offline-run-*-{id}/run-{id}.wandb")
    )
    assert b"eval/heldout/sampled/pass@4" in record and b"kl_coef" in record and b"rollstream" in record


@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_each_metric_at_its_step_and_the_configuration(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow", reason=ON_REQUEST)
    pytest.importorskip("sqlalchemy", reason="mlflow-skinny has no database of its own")
    monkeypatch.chdir(run)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    use(("mlflow",), run, None, range(1, 3))
    use(("mlflow",), run, 2, range(3, 4))
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{run / 'mlflow.db'}")
    id = (run / "mlflow.id").read_text()
    history = client.get_metric_history(id, "reward/mean")
    assert sorted((point.step, point.value) for point in history) == [(1, 1.0), (2, 2.0), (3, 3.0)]
    data = client.get_run(id).data
    assert data.metrics["eval/heldout/sampled/pass_at_4"] == 0.25
    assert data.params["learner.kl_coef"] == "0.05"
    (experiment,) = [e for e in client.search_experiments() if e.name == "rollstream"]
    assert len(client.search_runs([experiment.experiment_id])) == 1


@pytest.mark.filterwarnings("ignore")
def test_trackio_has_each_metric_at_its_step(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # read when it is imported
    pytest.importorskip("trackio", reason=ON_REQUEST)
    from trackio.sqlite_storage import SQLiteStorage

    use(("trackio",), run, None, range(1, 3))
    use(("trackio",), run, 2, range(3, 4))
    rows = SQLiteStorage.get_logs("rollstream", "r")
    assert [(row["step"], row["reward/mean"]) for row in rows] == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert json.dumps(rows).count("eval/heldout/sampled/pass@4") == 3
