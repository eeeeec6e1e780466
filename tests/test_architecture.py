"""The laws of docs/architecture.md that a machine can see."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SERVICES = ("rollout", "reward", "learner", "console")
ROOMS = ("shared", "services", "examples", "benchmarks")
CODE = sorted(path for room in ROOMS for path in ROOT.glob(f"{room}/**/*.py"))

FORBIDDEN_IN_SHARED = {"torch", "vllm", "fastapi", "transformers", "services", "examples"}
PURE = ("kl", "advantages", "losses", "schedule", "rewards", "correction", "state")


def imports(path: Path) -> Iterator[str]:
    """Full names of the modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield f"{node.module}"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_imports_no_other_service(service: str) -> None:
    others = tuple(f"services.{other}" for other in SERVICES if other != service)
    for path in ROOT.glob(f"services/{service}/**/*.py"):
        assert not [name for name in imports(path) if name.startswith(others)], path


def test_shared_imports_no_service_and_no_heavy_library() -> None:
    for path in ROOT.glob("shared/*.py"):
        assert not {name.split(".")[0] for name in imports(path)} & FORBIDDEN_IN_SHARED, path


@pytest.mark.parametrize("module", PURE)
def test_the_algorithm_is_pure_functions_of_tensors(module: str) -> None:
    names = set(imports(ROOT / f"services/learner/algorithm/{module}.py"))
    assert {name.split(".")[0] for name in names} <= {
        "torch",
        "math",
        "typing",
        "dataclasses",
        "collections",
        "services",
    }
    assert not [name for name in names if "distributed" in name or "config" in name]
    own = [name for name in names if name.startswith("services") and name.count(".") == 3]
    assert {name.rsplit(".", 1)[1] for name in own} <= set(PURE)


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("shared.stream", ("torch", "vllm", "fastapi", "transformers")),
        ("shared.config", ("torch", "vllm", "fastapi", "transformers", "redis")),
        ("services.console.cli", ("torch", "vllm", "fastapi", "transformers", "matplotlib")),
        ("services.reward.app", ("torch", "vllm", "transformers")),
        ("services.learner.config.learner", ("torch", "transformers")),
        ("services.rollout.config", ("torch", "vllm")),
    ],
)
def test_importing_a_module_leaves_heavy_libraries_alone(module: str, absent: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print(sorted({set(absent)!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_file_is_longer_than_300_lines() -> None:
    long = {str(path): n for path in CODE if (n := len(path.read_text().splitlines())) > 300}
    assert not long


def test_nothing_unsafe_is_called_on_a_fed_path() -> None:
    unsafe = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"}
    for path in CODE:
        assert not {name.split(".")[0] for name in imports(path)} & unsafe, path
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            assert called not in {"eval", "exec", "torch.load", "torch.save", "os.system"}, (
                f"{path}: {called}"
            )
            for keyword in node.keywords:
                value = ast.unparse(keyword.value)
                assert (keyword.arg, value) not in {("shell", "True"), ("trust_remote_code", "True")}, path


def documents() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.name)
def test_a_file_named_in_the_documents_exists(document: Path) -> None:
    named = set(
        re.findall(
            r"`([A-Za-z0-9_.{}-]+(?:/[A-Za-z0-9_.{}-]+)*\.(?:py|toml|yml|md|json|sh))`", document.read_text()
        )
    )
    produced = {"report.json", "config.toml", "config.json", "manifest.json", "run.toml", "tokenizer.json"}
    of_the_seeds = {"train_ppo.py", "prepare_dataset.py", "dataset_info.json"}
    elsewhere = produced | of_the_seeds
    missing = [n for n in named if n.rsplit("/", 1)[-1] not in elsewhere and not (ROOT / n).exists()]
    assert not missing, f"{document.name} names {missing}"
