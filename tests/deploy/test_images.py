"""Each image holds one service and shared/; its command starts there alone and takes what it is given."""

import json
import os
import subprocess
import sysconfig
import time
import tomllib
from pathlib import Path

import pytest
import redis

from shared.stream import Streams, connect
from tests.conftest import RedisServer, free_port, redis_binary
from tests.deploy import image
from tests.deploy.compose_file import BASE, ROOT, SECRETS, environment, load
from tests.deploy.image import DOCKERFILES, environment_in

SERVICES = ("rollout", "reward", "learner", "console")
CONFIGURED = ("rollout", "reward", "learner")


def start_command(name: str) -> list[str]:
    """What the container of a service runs."""
    service = load(BASE)["services"][name]
    assert "entrypoint" not in service
    return service.get("command") or image.read(DOCKERFILES[name]).command


@pytest.fixture
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with what the image named by the test's parameter copies, and the run's file."""
    folder = tmp_path / "app"
    folder.mkdir()
    image.read(DOCKERFILES[request.param]).unpack(folder)
    source, target, _ = load(BASE)["services"]["reward"]["volumes"][0].rsplit(":", 2)
    (folder / Path(target).name).write_text((ROOT / source).read_text())
    return folder


def variables(name: str, app: Path) -> dict[str, str]:
    return environment(load(BASE)["services"][name]) | environment_in(app)


def run(command: list[str], app: Path, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=app, env=environ, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("name", DOCKERFILES)
def test_an_image_copies_its_own_room_and_what_it_copies_exists(name: str) -> None:
    own = "examples/arithmetic" if name == "model" else f"services/{name}"
    needed = {"pyproject.toml", own} | ({"shared"} if name in SERVICES else set())
    copies = image.read(DOCKERFILES[name]).copies
    assert {source for source, _ in copies} == needed
    assert all((ROOT / source).exists() for source, _ in copies)
    assert load(BASE)["services"][name]["build"]["dockerfile"] == str(DOCKERFILES[name].relative_to(ROOT))


def test_what_the_images_copy_is_sent_to_the_builder() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert lines[0] == "*"
    sent = {line[1:] for line in lines if line.startswith("!")}
    copied = {source for path in DOCKERFILES.values() for source, _ in image.read(path).copies}
    assert {source.split("/")[0] for source in copied} == sent


@pytest.mark.parametrize("name", DOCKERFILES)
def test_an_image_runs_as_a_fixed_user_that_is_not_root(name: str) -> None:
    made = image.read(DOCKERFILES[name])
    assert made.only("FROM") == "python:3.11-slim"
    assert made.only("USER") == "10001:10001"
    last_run = max(index for index, (kind, _) in enumerate(made.instructions) if kind == "RUN")
    assert made.instructions.index(("USER", "10001:10001")) > last_run


def test_the_warm_start_shares_the_layers_of_the_learner() -> None:
    def layers(name: str) -> list[tuple[str, str]]:
        instructions = image.read(DOCKERFILES[name]).instructions
        return instructions[: instructions.index(("COPY", "pyproject.toml ./")) + 2]

    assert layers("model") == layers("learner")


def test_the_pinned_torch_is_the_one_of_the_project() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name, extra in (("rollout", "rollout-cpu"), ("learner", "learner"), ("model", "learner")):
        pinned = next(rest for rest in image.read(DOCKERFILES[name]).all("ARG") if rest.startswith("TORCH="))
        assert f"torch=={pinned.removeprefix('TORCH=')}" in extras[extra]


@pytest.mark.parametrize(("app", "name"), [(name, name) for name in CONFIGURED], indirect=["app"])
def test_a_service_starts_alone_and_accepts_its_configuration(app: Path, name: str) -> None:
    done = run([*start_command(name), "--print-config"], app, variables(name, app))
    assert done.returncode == 0, done.stderr
    tables = json.loads(done.stdout)
    assert tables["redis"]["url"] == f"redis://:{SECRETS['REDIS_PASSWORD']}@redis:6379/0"
    if name != "learner":
        assert tables[name]["host"] == "0.0.0.0"
        (port,) = load(BASE)["services"][name]["ports"]
        assert tables[name]["port"] == int(port.rsplit(":", 1)[1])
    if name == "rollout":
        assert tables[name]["url"] is None, "each replica gives out its own address"
    if name != "reward":
        (cache,) = [v for v in load(BASE)["services"][name]["volumes"] if v.startswith("cache:")]
        made = Path("/app") / image.read(DOCKERFILES["model"]).command[-1]
        assert made.is_relative_to(cache.split(":")[1])
        assert Path("/app") / tables["model"]["path"] == made / "model"


@pytest.mark.parametrize(("app", "name"), [(name, name) for name in CONFIGURED], indirect=["app"])
def test_a_misspelt_key_in_the_environment_ends_a_service(app: Path, name: str) -> None:
    done = run(start_command(name), app, variables(name, app) | {"ROLLSTREAM_RUN__NAMME": "x"})
    assert done.returncode == 2 and "run.namme" in done.stderr


@pytest.mark.parametrize(("app", "name"), [(name, name) for name in DOCKERFILES], indirect=["app"])
def test_every_module_of_an_image_is_importable_there(app: Path, name: str) -> None:
    sources = sorted(path for path in app.rglob("*.py") if path.name != "__main__.py")
    modules = [".".join(path.relative_to(app).with_suffix("").parts) for path in sources]
    assert modules
    code = (
        "import importlib\n"
        f"modules = [importlib.import_module(name) for name in {modules!r}]\n"
        "print(*[module.__file__ for module in modules], sep='\\n')"
    )
    done = run(["python", "-c", code], app, variables(name, app))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-len(modules) :] == [str(path) for path in sources]


@pytest.mark.parametrize("app", ["model"], indirect=True)
def test_the_warm_start_answers_for_help(app: Path) -> None:
    done = run([*image.read(DOCKERFILES["model"]).command, "--help"], app, variables("model", app))
    assert done.returncode == 0 and "--out" in done.stdout


@pytest.mark.parametrize("app", ["console"], indirect=True)
def test_the_console_shows_a_run_from_its_image(
    app: Path, streams: Streams, redis_server: RedisServer
) -> None:
    environ = variables("console", app) | {"ROLLSTREAM_REDIS__URL": redis_server.url}
    command = image.read(DOCKERFILES["console"]).command
    none = run(command, app, environ | {"ROLLSTREAM_RUN__NAME": "none"})
    assert none.returncode == 2 and "run 'none' is not in Redis" in none.stderr
    done = run(command, app, environ | {"ROLLSTREAM_RUN__NAME": streams.run})
    expected = f"no service of run {streams.run} is alive"
    assert done.returncode == 0 and expected in done.stdout.replace("\n", ""), done.stderr
    assert " ".join(image.read(DOCKERFILES["console"]).command) in start_command("console")[-1]


@pytest.mark.parametrize("app", ["console"], indirect=True)
def test_the_consoles_image_takes_overrides_of_services_whose_code_it_lacks_unchecked(
    app: Path, streams: Streams, redis_server: RedisServer
) -> None:
    environ = variables("console", app) | {
        "ROLLSTREAM_REDIS__URL": redis_server.url,
        "ROLLSTREAM_RUN__NAME": streams.run,
        "PYTHONPATH": f"{app}:{sysconfig.get_path('purelib')}",
    }
    # -S: an editable installation would add the services that the image does not have.
    status = ["python", "-S", "-m", "services.console", "status", "--config", "run.toml"]
    done = run([*status, "--learner.stepz=3"], app, environ)
    assert done.returncode == 0 and "no service of run" in done.stdout, done.stderr
    refused = run([*status, "--console.max_restart=3"], app, environ)
    assert refused.returncode == 2 and "Did you mean 'max_restarts'?" in refused.stderr


@pytest.mark.parametrize("app", ["reward"], indirect=True)
def test_the_reward_image_serves_and_its_probe_tells_health_from_sickness(
    app: Path, redis_server: RedisServer
) -> None:
    port = free_port()
    environ = variables("reward", app) | {
        "ROLLSTREAM_REDIS__URL": redis_server.url,
        "ROLLSTREAM_REWARD__PORT": str(port),
    }
    kind, *probe = load(BASE)["services"]["reward"]["healthcheck"]["test"]
    probe = [word.replace("8001", str(port)) for word in probe]
    assert kind == "CMD" and str(port) in probe[-1]
    assert run(probe, app, environ).returncode != 0
    with subprocess.Popen(start_command("reward"), cwd=app, env=environ, stderr=subprocess.PIPE) as process:
        try:
            deadline = time.monotonic() + 60
            while run(probe, app, environ).returncode:
                assert process.poll() is None and time.monotonic() < deadline, "never healthy"
        finally:
            process.terminate()
            process.communicate(timeout=30)
    assert run(probe, app, environ).returncode != 0


def test_the_redis_command_asks_for_the_password_and_never_evicts(tmp_path: Path) -> None:
    service = load(BASE)["services"]["redis"]
    (tmp_path / "redis-server").symlink_to(redis_binary())
    port = free_port()
    environ = environment(service) | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    kind, flag, script = service["entrypoint"]
    script = script.replace(
        "redis-server -", f"redis-server - --port {port} --bind 127.0.0.1 --dir {tmp_path}"
    )
    with subprocess.Popen([kind, flag, script], env=environ, stdout=subprocess.DEVNULL) as process:
        try:
            _assert_is_locked_and_safe(port, process)
            arguments = Path(f"/proc/{process.pid}/cmdline").read_bytes().decode()
            assert SECRETS["REDIS_PASSWORD"] not in arguments
        finally:
            process.terminate()


def _assert_is_locked_and_safe(port: int, process: subprocess.Popen[bytes]) -> None:
    url = f"redis://127.0.0.1:{port}/0"
    deadline = time.monotonic() + 30
    while True:
        try:
            with connect(url) as client:
                client.ping()
            raise AssertionError("answered without a password")
        except redis.AuthenticationError:
            break
        except redis.RedisError:
            assert process.poll() is None and time.monotonic() < deadline, "redis-server did not start"
            time.sleep(0.02)
    with connect(url.replace("//", f"//:{SECRETS['REDIS_PASSWORD']}@")) as client:
        settings = client.config_get("*")
        assert settings["maxmemory-policy"] == "noeviction" and settings["appendonly"] == "yes"
