"""The compose files are valid, and what they promise about security and scaling holds."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from tests.deploy import image
from tests.deploy.compose_file import BASE, GPU, ROOT, SECRETS, load

# github.com/compose-spec/compose-spec, schema/compose-spec.json, unchanged; Apache License 2.0.
SCHEMA = json.loads((Path(__file__).parent / "compose-spec.json").read_text())
OURS = ("model", "rollout", "reward", "learner", "console")
SCALED = ("rollout", "reward")


def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = load(BASE)["services"]
    return found


@pytest.mark.parametrize("path", [BASE, GPU], ids=lambda path: path.name)
def test_the_file_follows_the_compose_specification(path: Path) -> None:
    Draft202012Validator.check_schema(SCHEMA)
    problems = list(Draft202012Validator(SCHEMA).iter_errors(load(path)))
    assert not problems, "\n".join(f"{problem.json_path}: {problem.message}" for problem in problems)


def test_the_schema_notices_a_misspelt_key() -> None:
    document = load(BASE)
    document["services"]["reward"]["heathcheck"] = {}
    assert not Draft202012Validator(SCHEMA).is_valid(document)


def test_every_service_waits_for_what_it_needs() -> None:
    found = services()
    needs = {name: found[name].get("depends_on", {}) for name in found}
    assert {name: set(need) for name, need in needs.items()} == {
        "redis": set(),
        "model": set(),
        "rollout": {"redis", "model"},
        "reward": {"redis"},
        "learner": {"redis", "model", "rollout", "reward"},
        "console": {"redis"},
    }
    for need in needs.values():
        for name, how in need.items():
            if name == "model":
                assert how == {"condition": "service_completed_successfully"}
            else:
                assert how == {"condition": "service_healthy"} and "healthcheck" in found[name]


@pytest.mark.parametrize("name", ["redis", *OURS])
def test_a_container_has_no_rights_it_does_not_need(name: str) -> None:
    service = services()[name]
    assert service["read_only"] and service["cap_drop"] == ["ALL"] and service["pids_limit"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cap_add", "devices", "pid", "ipc", "userns_mode"} & service.keys()
    assert service.get("network_mode") in (None, "none")
    assert not [volume for volume in service.get("volumes", []) if "docker.sock" in volume]


def test_ports_are_published_on_loopback_only() -> None:
    published = {name: service.get("ports", []) for name, service in services().items()}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)
    inside = {name: ports[0].rsplit(":", 1)[1] for name, ports in published.items() if ports}
    assert inside == {"redis": "6379", "rollout": "8000", "reward": "8001"}


@pytest.mark.parametrize("name", SCALED)
def test_replicas_of_a_scaled_service_do_not_collide(name: str) -> None:
    service = services()[name]
    assert "container_name" not in service and "hostname" not in service
    assert [port.split(":")[1] for port in service["ports"]] == [""], "a fixed host port"
    assert [volume for volume in service["volumes"] if not volume.endswith(":ro")] == [], (
        "a shared writable volume"
    )


def test_only_stateless_services_are_restarted() -> None:
    restart = {name: service.get("restart", "no") for name, service in services().items()}
    assert restart["learner"] == restart["model"] == "no"
    assert all(restart[name].startswith("on-failure") for name in ("redis", "rollout", "reward", "console"))


def test_the_reward_service_reaches_redis_and_no_other_service() -> None:
    found = services()
    (network,) = found["reward"]["networks"]
    assert {name for name, service in found.items() if network in service.get("networks", [])} == {
        "reward",
        "redis",
    }


@pytest.mark.parametrize("path", [BASE, GPU], ids=lambda path: path.name)
def test_no_secret_is_on_a_command_line(path: Path) -> None:
    for name, service in load(path)["services"].items():
        probe = service.get("healthcheck", {}).get("test")
        shown = json.dumps([service.get(key) for key in ("command", "entrypoint", "build")] + [probe])
        assert not [secret for secret in SECRETS.values() if secret in shown], name


def test_every_secret_is_required_and_the_message_tells_how_to_make_it() -> None:
    for name in SECRETS:
        for rest in (SECRETS | {name: ""}, {other: SECRETS[other] for other in SECRETS if other != name}):
            with pytest.raises(LookupError, match=f"^{name} run sh scripts/compose_env.sh once"):
                load(BASE, rest)


def test_the_env_script_makes_different_secrets_and_never_overwrites(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    for name in ("scripts/compose_env.sh", ".env.example"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    subprocess.run(["sh", "scripts/compose_env.sh"], cwd=tmp_path, check=True, capture_output=True)
    made = tmp_path / ".env"
    values = dict(line.split("=", 1) for line in made.read_text().splitlines() if line[:1].isalpha())
    assert values.keys() == SECRETS.keys() and len(set(values.values())) == len(SECRETS)
    assert all(value.isalnum() and len(value) == 48 for value in values.values())
    assert made.stat().st_mode & 0o077 == 0
    load(BASE, values)
    before = made.read_text()
    subprocess.run(["sh", "scripts/compose_env.sh"], cwd=tmp_path, check=True, capture_output=True)
    assert made.read_text() == before


def test_every_variable_of_the_compose_files_is_in_the_example() -> None:
    example = {line.lstrip("#").split("=")[0] for line in (ROOT / ".env.example").read_text().splitlines()}
    used = {name for path in (BASE, GPU) for name in _variables(path)}
    assert used <= example


def test_named_volumes_and_networks_are_declared() -> None:
    document = load(BASE)
    for path in (BASE, GPU):
        overlay = load(path)
        declared = {*document["volumes"], *overlay.get("volumes", {})}
        for name, service in overlay["services"].items():
            named = {volume.split(":")[0] for volume in service.get("volumes", [])}
            assert {volume for volume in named if not volume.startswith(("/", "."))} <= declared, name
            assert set(service.get("networks", [])) <= document["networks"].keys(), name


def test_the_console_sees_what_the_learner_writes_and_cannot_change_it() -> None:
    found = services()
    assert "runs:/app/runs" in found["learner"]["volumes"]
    assert "runs:/app/runs:ro" in found["console"]["volumes"]
    made = "install -d -o 10001 -g 10001 runs runs/cache"
    for name in ("learner", "console"):  # the first to mount the new volume gives it its owner
        assert any(made in command for command in image.read(image.DOCKERFILES[name]).all("RUN")), name


def test_the_gpu_overlay_changes_services_that_exist_and_only_they_see_a_gpu() -> None:
    base, overlay = services(), load(GPU)["services"]
    assert overlay.keys() == {"rollout", "learner"}
    for name, service in overlay.items():
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        assert device["capabilities"] == ["gpu"] and device["device_ids"] == ["0"]
        assert service["build"] == {"args": {"DEVICE": "gpu"}}
        assert service["image"] == base[name]["image"].replace(":cpu", ":gpu")
    assert not [name for name, service in base.items() if "deploy" in service]


def _variables(path: Path) -> set[str]:
    text = yaml.safe_dump(yaml.safe_load(path.read_text()))
    passed_on = {
        name
        for service in yaml.safe_load(path.read_text())["services"].values()
        for name, value in service.get("environment", {}).items()
        if value is None
    }
    return set(re.findall(r"\$\{(\w+)", text)) | passed_on
