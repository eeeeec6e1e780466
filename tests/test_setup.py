"""What `scripts/setup.sh` refuses before it installs anything."""

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent


def set_up(clone: Path, *, df: str = "", python: str = "python3") -> subprocess.CompletedProcess[str]:
    """Runs the script in a folder that holds nothing but it, with `df` printing what the test says."""
    (clone / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "setup.sh", clone / "scripts")
    shutil.copy(ROOT / "pyproject.toml", clone)
    commands = clone / "commands"
    commands.mkdir()
    (commands / "df").write_text(f"#!/bin/sh\nprintf '{df}'\n")
    (commands / "df").chmod(0o755)
    environment = os.environ | {"PATH": f"{commands}:{os.environ['PATH']}", "PYTHON": python}
    return subprocess.run(
        ["sh", "scripts/setup.sh"], cwd=clone, env=environment, capture_output=True, text=True, timeout=60
    )


def test_a_disk_that_is_too_full_is_named_before_anything_is_installed(tmp_path: Path) -> None:
    done = set_up(
        tmp_path, df="Filesystem 1024-blocks Used Available Capacity Mounted\\n/dev/x 9 9 2097152 99%% /\\n"
    )
    assert done.returncode == 2
    assert done.stderr == f"error: set-up needs 5 GB of disk, and 2 GB are free in {tmp_path}\n"
    assert not (tmp_path / ".venv").exists()


def test_a_python_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = set_up(tmp_path, python="python-of-nowhere")
    assert done.returncode == 2
    assert done.stderr == (
        "error: python-of-nowhere was not found; install Python 3.11 or newer, or set PYTHON\n"
    )
