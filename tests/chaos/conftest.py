"""One workspace for all chaos runs, and the weights that an undisturbed run of it ends with."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.audit import audit, weights_of
from tests.chaos.pipeline import Pipeline
from tests.chaos.workspace import make_workspace, setting

Begin = Callable[..., Pipeline]


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_workspace(tmp_path_factory.mktemp("chaos") / "workspace")


@pytest.fixture(scope="session")
def steps(workspace: Path) -> int:
    return int(setting(workspace, "learner", "steps"))


@pytest.fixture(scope="session")
def undisturbed(workspace: Path, steps: int, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Digests of the weights that a synchronous run ends with when nothing happens to it."""
    with Pipeline(tmp_path_factory.mktemp("chaos") / "undisturbed", workspace) as pipeline:
        pipeline.finish()
        assert audit(pipeline, steps) == {}
        return weights_of(pipeline.run)


@pytest.fixture
def begin(workspace: Path, tmp_path: Path) -> Iterator[Begin]:
    """Starts pipelines, which are gone when the test is over."""
    started: list[Pipeline] = []

    def make(**options: Any) -> Pipeline:
        pipeline = Pipeline(tmp_path / f"run{len(started)}", workspace, **options)
        started.append(pipeline)
        return pipeline.__enter__()

    yield make
    for pipeline in started:
        pipeline.close()
