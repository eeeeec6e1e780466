"""One file, environment and command line over it, and clear words for every mistake."""

from pathlib import Path

import pytest
from pydantic import Field

from shared.config import RedisConfig, Settings, Table, load_settings


class LoraTable(Table):
    rank: int = 4


class LearnerTable(Table):
    lora: LoraTable | None = None
    extra: tuple[LoraTable, ...] = ()
    kl_coef: float = Field(default=0.05, ge=0)
    steps: int = 10
    prompts: Path = Path("p.jsonl")


class LearnerTables(Settings):
    learner: LearnerTable = LearnerTable()


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(text)
    return path


MODEL = '[model]\npath = "m"\n'


def test_command_line_beats_environment_beats_file(tmp_path: Path) -> None:
    path = write(tmp_path, MODEL + "[learner]\nkl_coef = 0.1\nsteps = 1\n")
    environment = {"ROLLSTREAM_LEARNER__KL_COEF": "0.2", "ROLLSTREAM_LEARNER__STEPS": "2", "OTHER": "x"}
    assert load_settings(LearnerTables, path, {}).learner.kl_coef == 0.1
    assert load_settings(LearnerTables, path, environment).learner.kl_coef == 0.2
    settings = load_settings(LearnerTables, path, environment, ["--learner.kl_coef", "0.3", "--run.name=a.b"])
    assert (settings.learner.kl_coef, settings.learner.steps, settings.run.name) == (0.3, 2, "a.b")


def test_a_key_of_a_table_in_a_table_can_be_overridden(tmp_path: Path) -> None:
    path = write(tmp_path, MODEL + "[learner.lora]\nrank = 2\n")
    environment = {"ROLLSTREAM_LEARNER__LORA__RANK": "3"}
    lora = [
        load_settings(LearnerTables, path, e, o).learner.lora
        for e, o in (({}, []), (environment, []), (environment, ["--learner.lora.rank", "5"]))
    ]
    assert [table and table.rank for table in lora] == [2, 3, 5]
    with pytest.raises(ValueError, match="'steps' is a value in the config file, not a table"):
        load_settings(
            LearnerTables, write(tmp_path, MODEL + "[learner]\nsteps = 1\n"), {}, ["--learner.steps.x", "1"]
        )


@pytest.mark.parametrize("text", ["[learner.lora]\nrnk = 2\n", "[[learner.extra]]\nrnk = 2\n"])
def test_a_misspelt_key_of_a_table_in_a_table_gets_a_suggestion(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match="Did you mean 'rank'"):
        load_settings(LearnerTables, write(tmp_path, MODEL + text), {})


def test_a_value_that_is_no_toml_is_text(tmp_path: Path) -> None:
    path = write(tmp_path, MODEL)
    settings = load_settings(LearnerTables, path, {}, ["--learner.prompts", "../data/train.jsonl"])
    assert settings.learner.prompts == Path("../data/train.jsonl")


def test_a_name_that_looks_like_a_number_is_a_name(tmp_path: Path) -> None:
    path = write(tmp_path, MODEL)
    assert load_settings(LearnerTables, path, {}, ["--run.name=7"]).run.name == "7"
    assert load_settings(LearnerTables, path, {"ROLLSTREAM_RUN__NAME": "2026-11-20"}).run.name == "2026-11-20"


def test_a_bad_redis_address_is_not_repeated_with_its_password(tmp_path: Path) -> None:
    path = write(tmp_path, MODEL + '[redis]\nurl = "redis:/:secret@host"\n')
    with pytest.raises(ValueError, match=r"redis\.url") as caught:
        load_settings(LearnerTables, path, {})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "public"),
    [
        ("redis://:p@ss@h:1/0", "redis://:***@h:1/0"),
        ("rediss://me:pass@h/0?db=1&password=pass&x=1", "rediss://me:***@h/0?db=1&password=***&x=1"),
        ("unix:///run/redis.sock?password=pass", "unix:///run/redis.sock?password=***"),
        ("redis://me@h:1/0", "redis://me@h:1/0"),
    ],
)
def test_a_password_is_hidden_and_the_rest_of_the_address_kept(url: str, public: str) -> None:
    assert RedisConfig(url=url).public_url == public


def test_a_hidden_password_is_not_taken_for_one(tmp_path: Path) -> None:
    path = write(tmp_path, MODEL + '[redis]\nurl = "redis://:***@host"\n')
    with pytest.raises(ValueError, match="ROLLSTREAM_REDIS__URL"):
        load_settings(LearnerTables, path, {})
    settings = load_settings(LearnerTables, path, {"ROLLSTREAM_REDIS__URL": "redis://:secret@host"})
    assert settings.redis.url == "redis://:secret@host"


def test_a_token_in_the_environment_is_not_taken_for_a_table(tmp_path: Path) -> None:
    load_settings(
        LearnerTables, write(tmp_path, MODEL), {"ROLLSTREAM_TOKEN": "x", "ROLLSTREAM_REWARD_TOKEN": "y"}
    )


def test_tables_of_other_services_are_left_to_them(tmp_path: Path) -> None:
    load_settings(LearnerTables, write(tmp_path, MODEL + "[rollout]\nanything = 1\n"), {})


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        (
            MODEL + "[learner]\nkl_coeff = 0.1\n",
            [],
            "unknown key 'learner.kl_coeff'. Did you mean 'kl_coef'?",
        ),
        (MODEL + "[learnr]\n", [], "unknown table 'learnr'. Did you mean 'learner'?"),
        (MODEL, ["--lerner.steps", "3"], "option --lerner.steps: unknown table 'lerner'. Did you mean"),
        (MODEL, ["--learner.step", "3"], "unknown key 'learner.step'. Did you mean 'steps'?"),
        (MODEL, ["--learner.steps"], "option --learner.steps has no value"),
        (MODEL, ["--steps", "3"], "overrides have the form --table.key value"),
        (MODEL, ["steps=3"], "argument 'steps=3' was not expected"),
        (MODEL + '[learner]\nsteps = "many"\n', [], 'learner.steps = "many"'),
        (MODEL + "[learner]\nkl_coef = -1\n", [], "greater than or equal to 0"),
        ("", [], "'model' is required"),
        ("[model]\n", [], "'model.path' is required"),
        ("[model\n", [], "is not valid TOML"),
        ("model = 3\n", [], "'model' must be a table, written [model]"),
        (MODEL + '[redis]\nurl = "localhost:6379"\n', [], "redis.url"),
        (MODEL + '[run]\nname = "a/b"\n', [], "run.name"),
    ],
)
def test_a_mistake_is_named_with_its_place(
    tmp_path: Path, text: str, overrides: list[str], message: str
) -> None:
    with pytest.raises(ValueError) as caught:
        load_settings(LearnerTables, write(tmp_path, text), {}, overrides)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("environment", "overrides", "complaint"),
    [
        ({}, ["--learner.kl_coeff", "0.02"], "option --learner.kl_coeff: unknown key 'learner.kl_coeff'."),
        ({}, ["--learner.kl_coef=-1"], 'option --learner.kl_coef: learner.kl_coef = "-1": '),
        ({}, ["--learner.lora", "{rnk = 2}"], "option --learner.lora: unknown key 'learner.lora.rnk'."),
        ({"LEARNER__STEPS": "x"}, [], "environment variable ROLLSTREAM_LEARNER__STEPS: learner.steps = "),
        ({"LEARNER__STEPS": "1"}, ["--learner.steps=x"], "option --learner.steps: learner.steps = "),
        ({"LEARNER__STEPS": "1"}, ["--learner.lora.rank=1"], "config FILE: unknown key 'learner.stepz'."),
    ],
)
def test_what_gave_a_wrong_value_is_blamed_and_not_the_file(
    tmp_path: Path, environment: dict[str, str], overrides: list[str], complaint: str
) -> None:
    wrong = "stepz = 1\n" if "FILE" in complaint else ""
    path = write(tmp_path, MODEL + "[learner]\n" + wrong)
    environment = {f"ROLLSTREAM_{name}": value for name, value in environment.items()}
    with pytest.raises(ValueError) as caught:
        load_settings(LearnerTables, path, environment, overrides)
    assert str(caught.value).startswith(complaint.replace("FILE", str(path)))


def test_a_misspelt_table_in_the_environment_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="ROLLSTREAM_LERNER__STEPS: unknown table 'lerner'"):
        load_settings(LearnerTables, write(tmp_path, MODEL), {"ROLLSTREAM_LERNER__STEPS": "3"})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere\.toml cannot be read"):
        load_settings(LearnerTables, tmp_path / "nowhere.toml", {})
