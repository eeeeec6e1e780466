"""The run files that the project ships."""

from pathlib import Path

import pytest

from services.console.config import ConsoleSettings
from services.learner import ppo
from services.learner.algorithm.state import AlgorithmState
from services.learner.config.learner import LearnerSettings
from services.learner.data.batch import collate
from services.learner.data.supervised import PtxRow
from services.learner.data.supervised_batch import PtxSource
from services.learner.models.build import build
from services.learner.models.snapshot import policy_weights
from services.reward.config import RewardSettings
from services.rollout.config import RolloutSettings
from shared.config import Settings, load_settings
from shared.experience import Int32Array
from tests.learner.samples import ALONE, make_groups, save_tiny_llama

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


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)
def test_its_algorithm_trains_a_tiny_model(file: Path, tmp_path: Path) -> None:
    config = load_settings(LearnerSettings, file, {}).learner
    start = str(save_tiny_llama(tmp_path))
    smaller = ["--model.path", start, "--learner.groups_per_step", "8", "--learner.critic_warmup_steps", "0"]
    if config.critic.path:
        smaller += ["--learner.critic.path", start]
    settings = load_settings(LearnerSettings, file, {}, smaller)
    models = build(settings, ALONE, resumed=None)
    before = policy_weights(models)
    rows = [PtxRow(Int32Array([1, 2, 3]), [False, True, True])]
    metrics, _ = ppo.update(
        models,
        collate(make_groups(8, config.completions_per_prompt)),
        settings.learner,
        AlgorithmState(config.kl_coef),
        policy_version=0,
        seed=0,
        ptx=PtxSource(rows, config.ptx_batch_size, 0, ALONE.device) if config.ptx else None,
    )
    assert metrics["steps/optimizer"] == config.epochs * config.minibatches
    assert metrics["steps/skipped"] == metrics["steps/held"] == 0
    assert ("loss/ptx_avg" in metrics) == bool(config.ptx)
    assert any(not tensor.equal(before[name]) for name, tensor in policy_weights(models).items())
