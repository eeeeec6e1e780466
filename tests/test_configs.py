"""The run files that the project ships."""

from pathlib import Path

import pytest

from services.console.config import ConsoleSettings
from services.learner.config.learner import LearnerSettings
from services.reward.config import RewardSettings
from services.rollout.config import RolloutSettings
from shared.config import Settings, load_settings

FILES = sorted((Path(__file__).parent.parent / "configs").glob("*.toml"))


@pytest.mark.parametrize("kind", [RolloutSettings, RewardSettings, LearnerSettings, ConsoleSettings])
@pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)
def test_every_service_accepts_it(file: Path, kind: type[Settings]) -> None:
    assert load_settings(kind, file, {}).run.name


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)
def test_the_longest_prompt_and_its_completion_fit_the_engine(file: Path) -> None:
    engine = load_settings(RolloutSettings, file, {}).rollout.max_model_len
    learner = load_settings(LearnerSettings, file, {}).learner
    assert engine and learner.max_prompt_tokens + learner.max_new_tokens <= engine
