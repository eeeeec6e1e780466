"""Finding a run by its name, its folder or its configuration, and clear words where it is not."""

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from services.console import runs
from services.console.config import ConsoleSettings
from services.console.resolved import check_overrides, resolve
from services.learner.config.learner import LearnerSettings
from services.reward.config import RewardSettings
from services.rollout.config import RolloutSettings
from shared.config import load_settings
from shared.stream import Streams, connect
from shared.workers import Heartbeat
from tests.conftest import RedisServer, free_port
from tests.console.looking import Look, save_checkpoint, save_report, save_run, url_of

ROOT = Path(__file__).parents[2]
LOOKS = ("status", "queues", "peek prompts")


pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Redis with a password."""
    server = RedisServer(tmp_path_factory.mktemp("locked"))
    streams = connect(server.url)
    streams.config_set("requirepass", "secret")
    yield server.url.replace("//", "//:secret@")
    streams.close()
    server.kill()


def test_every_look_finds_the_newest_run_or_the_one_named(streams: Streams, shown: Look) -> None:
    folder = save_run(streams.run, url_of(streams))
    for look in map(str.split, LOOKS):
        assert shown(*look) == shown(*look, "--run", streams.run) == shown(*look, "--run", folder.absolute())
    assert streams.run in shown("queues")


def test_tables_stand_above_a_line_that_explains_their_columns(streams: Streams, shown: Look) -> None:
    save_run(streams.run, url_of(streams))
    for column in ("length", "pending", "lag", "oldest", "consumers"):
        assert f"{column}: " in " ".join(shown("queues").split())
    with_heartbeat = Heartbeat(streams, "reward", "reward-1", lambda: {"state": "ready"})
    with_heartbeat.start()
    text = " ".join(shown("status").split())
    with_heartbeat.stop()
    assert "reward-1" in text
    for column in ("version", "work", "staleness"):
        assert f"{column}: " in text


def test_a_run_that_is_not_in_redis_is_told_with_those_that_are(streams: Streams, refused: Look) -> None:
    streams.client.set(streams.key("worker:w"), "{}", ex=10)
    save_run("other", url_of(streams))
    for look in map(str.split, LOOKS):
        sentence = refused(*look, "--run", "other")
        assert f"run 'other' is not in Redis at {url_of(streams)}" in sentence
        assert f"{streams.run} (at work)" in sentence
    Path("demo.toml").write_text(Path("runs/other/config.toml").read_text().replace("'other'", "'demo'"))
    assert "the newest runs that --run finds are other" in refused("queues", "--config", "demo.toml")
    streams.client.delete(streams.key("worker:w"))
    assert f"{streams.run} (not at work)" in refused("queues")


def test_a_run_whose_redis_ended_with_it_is_told_with_what_it_reached(refused: Look, shown: Look) -> None:
    url = f"redis://127.0.0.1:{free_port()}/0"
    folder = save_run("done", url)
    sentence = refused("status")
    assert f"Redis at {url}, of run 'done', does not answer" in sentence
    assert "has no report of an ended run" in sentence
    save_checkpoint(folder, 13)
    save_checkpoint(folder, 14).unlink()
    back = f"rollstream up --config {folder}/config.toml"
    stopped = f"was stopped: go on from step 13 with `{back} --resume`"
    assert stopped in refused("status")
    save_report(folder, steps=12)
    assert stopped in refused("status"), "it went on past the end that it was reported to have"
    save_report(folder, steps=13)
    for look in ("status", "queues"):
        assert shown(look).splitlines() == [
            "done",
            "the run has ended after 13 steps; groups trained on: 3,328, dead: 2",
            "held-out greedy: 0.649 before, 0.911 after",
            f"report: {folder}/report.json",
            f"start the next with `{back} --run.name NAME`",
            f"train this one on with `{back} --resume --learner.steps 26`",
        ]
    with (folder / "config.toml").open("a") as file:
        file.write("resume = true\n")
    assert "--run.name NAME --learner.resume false`" in shown("status"), "there is nothing to resume yet"
    (folder / "report.json").write_text("{")
    assert "report.json is no JSON" in refused("status")


@pytest.mark.parametrize("look", ["peek prompts", "workers", "dead list", "dead show id-0"])
def test_a_look_that_needs_redis_says_first_that_the_run_has_ended(
    look: str, streams: Streams, refused: Look
) -> None:
    streams.client.set(streams.key("worker:w"), "{}", ex=10)
    url = f"redis://127.0.0.1:{free_port()}/0"
    for name, where in (("in-lasting-redis", url_of(streams)), ("in-its-own", url)):
        folder = save_run(name, where)
        save_report(folder)
        sentence = refused(*look.split(), "--run", name)
        assert sentence.startswith("error: the run has ended after 13 steps")
        assert f"report: {folder}/report.json; `rollstream status`, `queues`, `trace` and" in sentence
        assert f"Redis at {where}" in sentence and streams.run not in sentence


def test_a_service_is_asked_once_whether_an_override_of_it_is_right(
    streams: Streams, shown: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_run(streams.run, url_of(streams)) / "config.toml"
    asked: list[Path] = []

    def check(config: Path, environ: Mapping[str, str], overrides: Sequence[str]) -> None:
        asked.append(config)
        check_overrides(config, environ, overrides)

    monkeypatch.setattr(runs, "check_overrides", check)
    shown("queues", "--config", path, "--learner.steps", 4)
    shown("queues", "--learner.steps", 4)
    assert [config.absolute() for config in asked] == [path.absolute()] * 2


def test_a_report_half_written_while_services_live_is_not_looked_at(streams: Streams, shown: Look) -> None:
    folder = save_run(streams.run, url_of(streams))
    (folder / "report.json").write_text("{")
    heartbeat = Heartbeat(streams, "learner", "learner", lambda: {"version": 13, "steps": 13})
    heartbeat.start()
    try:
        assert "step 13 of 13" in shown("status") and "experiences" in shown("queues")
    finally:
        heartbeat.stop()


def test_a_trained_prompt_of_a_run_that_was_stopped_is_traced_from_its_folder(shown: Look) -> None:
    folder = save_run("stopped", f"redis://127.0.0.1:{free_port()}/0")
    row = {"id": "abc", "step": 20, "at": 1.0}
    (folder / "groups.jsonl").write_text(json.dumps(row) + "\n")
    assert "abc: trained on in step 20" in shown("trace", "abc")


def test_an_ended_run_whose_keys_are_still_there_is_told_with_its_report(
    streams: Streams, shown: Look
) -> None:
    folder = save_run(streams.run, url_of(streams))
    assert "is alive" in shown("status") and "report" not in shown("status")
    save_report(folder)
    for look in ("status", "queues"):
        assert "the run has ended after 13 steps" in shown(look)
        assert f"report: {folder / 'report.json'}\n" in shown(look)
    heartbeat = Heartbeat(streams, "learner", "learner", lambda: {"version": 14, "steps": 26})
    heartbeat.start()
    texts = [shown(look) for look in ("status", "queues")]
    heartbeat.stop()
    assert not any("has ended" in text for text in texts), "it goes on"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ("--run", "none"),
            "neither runs/none nor none has config.toml; the newest runs that --run finds are a",
        ),
        (("--run", "a", "--config", "b"), "--run a and --config b may name two runs: give one of them"),
        (("--config", "b"), "b cannot be read"),
        (("--rnu", "a"), "option --rnu is unknown"),
    ],
)
def test_a_run_that_cannot_be_found_is_told(
    arguments: tuple[str, ...], complaint: str, refused: Look
) -> None:
    save_run("a", f"redis://127.0.0.1:{free_port()}/0")
    assert complaint in refused("queues", *arguments)


@pytest.mark.parametrize("look", [*LOOKS, "workers", "trace id-0", "dead list", "completions"])
@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("--learnr.steps", "unknown table 'learnr'. Did you mean 'learner'?"),
        ("--learner.stepz", "unknown key 'learner.stepz'. Did you mean 'steps'?"),
        ("--confg", "option --confg is unknown. Did you mean '--config'?"),
    ],
)
def test_a_misspelt_override_of_a_look_is_refused_with_what_was_probably_meant(
    look: str, override: str, complaint: str, streams: Streams, refused: Look
) -> None:
    samples = save_run(streams.run, url_of(streams)) / "completions"
    samples.mkdir()
    (samples / "step-000001.jsonl").touch()
    assert complaint in refused(*look.split(), override, 3)


def test_a_right_override_may_stand_anywhere(streams: Streams, shown: Look) -> None:
    save_run(streams.run, url_of(streams))
    assert "prompts is empty" in shown("peek", "--learner.steps", 4, "prompts", "--console.ready_timeout=9")


def test_where_there_is_no_run_the_ways_to_name_one_are_told(refused: Look) -> None:
    assert "no run in runs/ has config.toml" in refused("status")


def test_the_password_comes_from_the_environment_as_it_is_in_no_file(
    locked: str, refused: Look, shown: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(locked) as client:
        Streams(client, "locked").ensure_groups()
    save_run("locked", locked.replace("secret", "***"))
    save_run("elsewhere", f"redis://127.0.0.1:{free_port()}/0")
    sentence = refused("queues", "--run", "locked")
    assert "the password is hidden as ***" in sentence and runs.URL_VARIABLE in sentence
    monkeypatch.setenv(runs.URL_VARIABLE, locked)
    assert "locked" in shown("queues", "--run", "locked")
    sentence = refused("queues", "--run", "elsewhere")
    assert "does not answer" in sentence, "the Redis in the environment is of another run"
    assert "secret" not in sentence
    monkeypatch.setenv(runs.URL_VARIABLE, locked.replace("secret", "wrong"))
    sentence = refused("queues", "--run", "locked")
    assert "refuses (invalid username-password" in sentence and "wrong" not in sentence
    monkeypatch.delenv(runs.URL_VARIABLE)
    save_run("open", locked.replace(":secret@", ""))
    assert "refuses (Authentication required" in refused("queues", "--run", "open")


def test_what_a_run_was_started_with_can_be_given_as_its_configuration_again() -> None:
    overrides = ["--redis.url=redis://me:secret@h:1/0?password=secret", "--learner.lora.rank=4"]
    overrides += ["--run.name=again", "--reward.scorers={gsm8k_reward_fn = {weight = 0.5}}"]
    resolved = resolve(ROOT / "configs/demo.toml", overrides)
    path = resolved.save()
    assert path == Path("runs/again/config.toml") and "secret" not in path.read_text()
    assert tomllib.loads(path.read_text())["redis"]["url"] == "redis://me:***@h:1/0?password=***"
    environment = {runs.URL_VARIABLE: "redis://me:secret@h:1/0?password=secret"}
    for kind in (RolloutSettings, RewardSettings, LearnerSettings, ConsoleSettings):
        service = kind.__name__.removesuffix("Settings").lower()
        settings = load_settings(kind, path, environment)
        tables = json.loads(settings.model_dump_json())
        assert {"run": tables["run"], service: tables[service]} == {
            "run": resolved.tables["run"],
            service: resolved.tables[service],
        }
