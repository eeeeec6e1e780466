"""The `[reward]` table: what it refuses, and with which words."""

from pathlib import Path

import pytest

from services.reward.config import RewardSettings
from services.reward.rules.colossalchat import TaggedConfig
from shared.config import load_settings


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text('[model]\npath = "m"\n[reward]\nscorers = { gsm8k_reward_fn = 0.1 }\n')
    return path


def test_file_environment_and_command_line_set_the_table(config: Path) -> None:
    settings = load_settings(
        RewardSettings,
        config,
        {"ROLLSTREAM_REWARD__PORT": "9000", "ROLLSTREAM_REWARD_TOKEN": "not a key of the table"},
        ["--reward.tags", '{ think_start = { text = "<think>", num_occur = 0 } }'],
    )
    scorer = settings.reward.scorers["gsm8k_reward_fn"]
    assert isinstance(scorer, TaggedConfig)
    assert (scorer.rule, scorer.weight, scorer.tags) == ("gsm8k_reward_fn", 0.1, settings.reward.tags)
    assert settings.reward.port == 9000
    assert settings.reward.tags.think_start.num_occur == 0
    assert settings.reward.tags.answer_end.text == "</answer>"
    assert settings.reward.host == "127.0.0.1"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (["--reward.scorers", "{ gsm8k_rewrd_fn = 1.0 }"], "unknown scorer 'gsm8k_rewrd_fn'. Did you mean"),
        (["--reward.scorers", "{}"], "reward.scorers"),
        (["--reward.scorers", "{ gsm8k_reward_fn = inf }"], "finite"),
        (["--reward.scorer", "x"], "unknown key 'reward.scorer'. Did you mean 'scorers'"),
        (["--reward.port", "seven"], "reward.port"),
        (["--reward.max_attempts", "0"], "reward.max_attempts"),
        (["--reward.tags", '{ answer_start = { text = "" } }'], "reward.tags.answer_start.text"),
        (["--reward.tags", '{ answer_start = { text = "<a>", num_occur = 0 } }'], "no answer is ever right"),
        (["--reward.tags", '{ answer_begin = { text = "<a>" } }'], "Did you mean 'answer_"),
    ],
)
def test_a_mistake_in_the_table_is_named(config: Path, override: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=r"^config ") as caught:
        load_settings(RewardSettings, config, {}, override)
    assert message in str(caught.value)
