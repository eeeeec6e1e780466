"""A short part of the soak that `make chaos` does at length."""

from pathlib import Path

from tests.chaos.soak import soak


def test_runs_disturbed_at_random_keep_every_promise(tmp_path: Path) -> None:
    done = soak(tmp_path, kills=8, groups=480, seed=7)
    assert done["kills"] >= 8 and done["groups"] >= 480
