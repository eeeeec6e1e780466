"""The command line: quick help, readable views, and a clear sentence for every mistake."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from shared.codec import encode
from shared.stream import Streams
from tests.console.entries import a_prompt
from tests.console.looking import call, url_of

ROOT = Path(__file__).parents[2]
COMMANDS = ("up", "demo", "config", "status", "queues", "peek", "completions", "workers", "trace")
DEAD = ("list", "show", "requeue", "drop")


@pytest.fixture
def run_file(tmp_path: Path, streams: Streams) -> Path:
    """A config file of the run that `streams` belongs to."""
    path = tmp_path / "run.toml"
    path.write_text(
        f"[run]\nname = '{streams.run}'\n[model]\npath = '{tmp_path}'\n"
        f"[redis]\nurl = '{url_of(streams)}'\n"
        "[learner]\nprompts = 'train.jsonl'\n"
    )
    return path


def test_help_needs_no_heavy_import() -> None:
    code = "import services.console.cli, sys; print(' '.join(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"torch", "vllm", "transformers", "fastapi", "redis", "pydantic", "matplotlib"} & set(loaded)


@pytest.mark.parametrize("command", [*COMMANDS, *(f"dead {word}" for word in DEAD)])
def test_every_command_explains_itself(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, *command.split(), "--help") == 0
    assert "--table.key value" in capsys.readouterr().out.replace("\n", " ").replace("  ", " ")


def test_queues_and_peek_show_the_runs_streams(
    run_file: Path, streams: Streams, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prompt = a_prompt()
    streams.append_prompts([(prompt.fields(), encode(prompt))], 1)
    assert call(monkeypatch, "queues", "--config", run_file) == 0
    assert "prompts" in capsys.readouterr().out
    assert call(monkeypatch, "peek", "prompts", "-n", "1", "--config", run_file) == 0
    assert "Tom has 12 pens" in capsys.readouterr().out
    assert call(monkeypatch, "peek", "dead", "--config", run_file) == 0
    assert "stream dead is empty" in capsys.readouterr().out
    assert call(monkeypatch, "status", "--config", run_file) == 0
    assert f"no service of run {streams.run} is alive" in capsys.readouterr().out


def test_the_version_is_that_of_the_project(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "--version") == 0
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert capsys.readouterr().out == f"rollstream {project['version']}\n"


def test_config_prints_toml_that_means_the_same_and_hides_the_password(
    run_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = ["--learner.kl_coef", "0.5", "--redis.url", "redis://:secret@somewhere:1/0", "--run.seed=4"]
    assert call(monkeypatch, "config", "--config", run_file, *overrides) == 0
    tables = tomllib.loads(capsys.readouterr().out)
    assert tables["learner"]["kl_coef"] == 0.5 and tables["run"]["seed"] == 4
    assert tables["reward"]["scorers"]["gsm8k_reward_fn"]["weight"] == 1.0
    assert tables["rollout"]["port"] == 8000 and tables["console"]["max_restarts"] == 5
    assert tables["redis"]["url"] == "redis://:***@somewhere:1/0"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ["queues", "--redis.url", "redis://nowhere.invalid:1/0"],
            "nowhere.invalid:1/0, of run ",
        ),
        (["queues", "--rn.name", "x"], "unknown table 'rn'. Did you mean 'run'?"),
        (["queues", "surplus"], "argument 'surplus' was not expected"),
        (["status", "--console.max_restarts", "many"], "console.max_restarts"),
        (["peek", "prompt"], "there is no stream 'prompt'"),
        (
            ["up", "--learner.kl_coff", "0.1"],
            "error: option --learner.kl_coff: unknown key 'learner.kl_coff'. Did you mean 'kl_coef'?",
        ),
        (["up", "--reward.scorers", "{gsm8k = 1.0}"], "gsm8k"),
        (["config", "--rollout.port", "x"], 'rollout.port = "x": Input should be a valid integer'),
        (
            ["config", "--learner.groups_per_step", "5", "--learner.minibatches", "3"],
            "run.toml: learner: groups_per_step x completions_per_prompt = ",
        ),
        (
            ["config", "--console.gpus", "{x = '0'}"],
            "error: option --console.gpus: console.gpus: there is no service 'x'",
        ),
    ],
)
def test_a_mistake_ends_with_one_clear_sentence(
    arguments: list[str],
    complaint: str,
    run_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(monkeypatch, *arguments, "--config", run_file) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and complaint in error
    assert "Traceback" not in error and "Value error" not in error
    assert error.count("\n") == 1, "one sentence for one mistake"


def test_a_missing_config_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "up", "--config", tmp_path / "none.toml") == 2
    assert "none.toml cannot be read: No such file or directory" in capsys.readouterr().err


def test_a_file_that_is_no_toml_is_said_to_be_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "odd.toml"
    path.write_text("[run\n")
    assert call(monkeypatch, "config", "--config", path) == 2
    assert "odd.toml is not valid TOML" in capsys.readouterr().err
