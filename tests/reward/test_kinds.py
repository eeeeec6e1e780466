"""Scorers of all kinds in one service: built from tables, composed, and told about."""

import subprocess
import sys
from pathlib import Path

import pytest

from services.reward.config import RewardConfig
from services.reward.core import ScoringCore
from services.reward.external.config import HOSTS_VARIABLE
from services.reward.kinds import KINDS
from shared.scoring import ScoreItem
from tests.reward.external.servers import Reply, serving
from tests.reward.neural.models import llama, write_model


def test_scorers_of_every_kind_make_one_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_model(tmp_path / "prm", "token_classification", llama(num_labels=2))
    plugin = tmp_path / "mine.py"
    plugin.write_text("def halve(item, parameters):\n    return len(item.response) / 2\n")
    with serving(lambda body: Reply({"scores": [3.0] * len(body["messages"])})) as server:
        monkeypatch.setenv(HOSTS_VARIABLE, server.url.removeprefix("http://"))
        config = RewardConfig.model_validate({
            "scorers": {
                "gsm8k_strict_reward_fn": 1.0,
                "steps": {
                    "kind": "neural",
                    "path": str(model),
                    "architecture": "token_classification",
                    "prompt_as": "user_message",
                    "device": "cpu",
                    "weight": 0,
                },
                "remote": {"kind": "external", "contract": "llamafactory", "url": server.url, "clip": [0, 2]},
                "halve": {"kind": "plugin", "path": str(plugin), "weight": 0.1},
            }
        })  # fmt: skip
        core = ScoringCore(config)
        try:
            result, other = core.score([
                ScoreItem(prompt="Q", response="one\n\n#### 18", ground_truth="18"),
                ScoreItem(prompt="Q", response="x" * 600, ground_truth="18"),
            ])  # fmt: skip
            told = core.describe()["configured"]
        finally:
            core.close()
    assert result.reward == pytest.approx(1.0 + 2.0 + 0.1 * 6)
    assert result.components["remote"] == 3.0 and len(result.steps["steps"]) == 2
    assert (other.status, other.reward) == ("invalid", None) and "steps takes 512 tokens" in str(other.error)
    assert {scorer["kind"] for scorer in told.values()} == {"rule", *KINDS}


def test_a_host_that_is_not_allowed_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HOSTS_VARIABLE, raising=False)
    table = {"kind": "external", "contract": "openrlhf", "url": "http://127.0.0.1:1/get_reward"}
    with pytest.raises(ValueError, match=HOSTS_VARIABLE):
        ScoringCore(RewardConfig.model_validate({"scorers": {"remote": table}}))


def test_torch_is_not_imported_where_no_neural_scorer_is_configured() -> None:
    code = (
        "import sys; from services.reward.core import ScoringCore; from services.reward.config import *;"
        "ScoringCore(RewardConfig()).close(); sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
