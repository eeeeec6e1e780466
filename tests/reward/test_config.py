"""The `[reward]` table: what it refuses, and with which words."""

from pathlib import Path

import pytest

from services.reward.config import RewardSettings
from services.reward.rules.colossalchat import TaggedConfig
from services.reward.rules.length import OverlongConfig
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


def test_a_scorer_may_be_a_weight_or_a_table_of_any_name(config: Path) -> None:
    config.write_text(
        '[model]\npath = "m"\n[reward]\ndeadline_seconds = 3\n'
        "[reward.scorers]\ngsm8k_reward_fn = 2\n"
        '[reward.scorers.brevity]\nrule = "overlong_penalty_fn"\nweight = 0.5\n'
        "max_length = 100\nbuffer = 20\n"
        "[reward.scorers.math_verify]\ndeadline_seconds = 10.5\n"
    )
    overrides = ["--reward.scorers.brevity.buffer", "30", "--reward.scorers.math_verify.weight", "0"]
    scorers = load_settings(RewardSettings, config, {}, overrides).reward.scorers
    assert [(name, scorer.weight, scorer.deadline_seconds) for name, scorer in scorers.items()] == [
        ("gsm8k_reward_fn", 2.0, None),
        ("brevity", 0.5, None),
        ("math_verify", 0.0, 10.5),
    ]
    brevity = scorers["brevity"]
    assert isinstance(brevity, OverlongConfig)
    assert (brevity.rule, brevity.max_length, brevity.buffer) == ("overlong_penalty_fn", 100, 30)


def test_a_printed_configuration_can_be_read_back(config: Path) -> None:
    printed = load_settings(RewardSettings, config, {}).model_dump_json()
    assert RewardSettings.model_validate_json(printed).model_dump_json() == printed


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (["--reward.scorers", "{ gsm8k_rewrd_fn = 1.0 }"], "unknown scorer 'gsm8k_rewrd_fn'. Did you mean"),
        (["--reward.scorers", "{}"], "reward.scorers"),
        (["--reward.scorers", "{ gsm8k_reward_fn = inf }"], "finite"),
        (["--reward.scorers.x", "{ rule = 'regex' }"], "scorer 'x': pattern: Field required"),
        (
            ["--reward.scorers.x", "{ rule = 'regex', patern = 'a' }"],
            "unknown key 'patern'. Did you mean 'pattern'",
        ),
        (["--reward.scorers.x", "{ kind = 'neurl' }"], "unknown kind 'neurl'. Did you mean 'neural'"),
        (["--reward.scorers.x", "7"], "unknown scorer 'x'"),
        (["--reward.deadline_seconds", "0"], "reward.deadline_seconds"),
        (["--reward.scorer", "x"], "unknown key 'reward.scorer'. Did you mean 'scorers'"),
        (["--reward.port", "seven"], "reward.port"),
        (["--reward.max_attempts", "0"], "reward.max_attempts"),
        (["--reward.tags", '{ answer_start = { text = "" } }'], "reward.tags.answer_start.text"),
        (["--reward.tags", '{ answer_start = { text = "<a>", num_occur = 0 } }'], "no answer is ever right"),
        (["--reward.tags", '{ answer_begin = { text = "<a>" } }'], "Did you mean 'answer_"),
    ],
)
def test_a_mistake_in_the_table_is_named(config: Path, override: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=r"^(config |option --reward\.)") as caught:
        load_settings(RewardSettings, config, {}, override)
    assert message in str(caught.value)
