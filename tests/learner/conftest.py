"""What several tests begin with. Property tests have no deadline here: on a busy machine a slow example is
no failure.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from services.learner.data.batch import ExperienceBatch, collate
from services.learner.models.actor_critic import ActorCritic
from services.learner.prometheus import LearnerMetrics
from tests.learner.samples import ALONE, load_models, make_groups, save_tiny_llama

settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture
def fresh(tiny_llama: Path) -> Callable[[], ActorCritic]:
    """Makes models as they are before any update."""
    return lambda: load_models(tiny_llama, ALONE)


@pytest.fixture
def batch() -> ExperienceBatch:
    return collate(make_groups(4, 3))


@pytest.fixture
def metrics() -> LearnerMetrics:
    return LearnerMetrics()
