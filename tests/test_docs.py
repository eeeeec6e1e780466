"""Every option of the algorithm and every metric has its line in the documents."""

import re
from pathlib import Path

import pytest

from services.learner.config.algorithm import AdaptiveKLConfig, AlgorithmConfig, CorrectionConfig
from services.learner.config.evaluation import EvaluationConfig
from services.learner.config.generation import GenerationConfig
from services.learner.config.models import CriticConfig, LoraConfig, ModelsConfig
from services.learner.config.tracking import TrackingConfig
from services.learner.data.batch import collate
from tests.learner.samples import ALONE, SETTINGS, load_models, make_groups, run_update, save_tiny_llama
from tests.metric_names import PPO, unexplained


@pytest.mark.parametrize(
    "table",
    [
        AlgorithmConfig,
        CorrectionConfig,
        AdaptiveKLConfig,
        GenerationConfig,
        EvaluationConfig,
        TrackingConfig,
        ModelsConfig,
        CriticConfig,
        LoraConfig,
    ],
)
def test_every_option_of_the_algorithm_is_documented(table: type) -> None:
    missing = [name for name in table.model_fields if name not in PPO]  # type: ignore[attr-defined]
    assert not missing


def test_every_metric_of_an_update_is_explained(tmp_path: Path) -> None:
    models = load_models(save_tiny_llama(tmp_path), ALONE)
    metrics = run_update(models, collate(make_groups(2, 2)), SETTINGS, policy_version=2, seed=0)
    assert not unexplained(metrics)
    assert unexplained(["objective/nothing", "staleness/tokens_7", "lr/x"]) == ["lr/x", "objective/nothing"]


def test_every_line_of_the_update_leads_to_its_function() -> None:
    ladder = PPO[: PPO.index("\n## ")]
    linked = re.findall(r"\[`(\w+)`\]\(\.\./(services/learner/[\w/]+\.py)\)", ladder)
    assert len(linked) >= 15
    for name, path in linked:
        source = (Path(__file__).parent.parent / path).read_text()
        assert re.search(rf"^ *(?:def|class) {name}\b", source, re.MULTILINE), f"{path} has no {name}"
