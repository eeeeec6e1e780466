"""What a Dockerfile makes, without building it: the files it copies, its variables and its command."""

import json
import os
import re
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from tests.deploy.compose_file import ROOT

DOCKERFILES = {
    "rollout": ROOT / "services/rollout/Dockerfile",
    "reward": ROOT / "services/reward/Dockerfile",
    "learner": ROOT / "services/learner/Dockerfile",
    "console": ROOT / "services/console/Dockerfile",
    "model": ROOT / "examples/arithmetic/Dockerfile",
}


@dataclass(frozen=True)
class Image:
    """A parsed Dockerfile."""

    instructions: list[tuple[str, str]]
    """(INSTRUCTION, rest), continued lines joined."""

    @property
    def copies(self) -> list[tuple[str, str]]:
        """(source in the repository, target in the working directory)."""
        return [(source, target) for source, target in (rest.split() for rest in self.all("COPY"))]

    def all(self, instruction: str) -> list[str]:
        return [rest for name, rest in self.instructions if name == instruction]

    def only(self, instruction: str) -> str:
        (rest,) = self.all(instruction)
        return rest

    @property
    def command(self) -> list[str]:
        """ENTRYPOINT and CMD."""
        return [
            word for name in ("ENTRYPOINT", "CMD") for rest in self.all(name) for word in json.loads(rest)
        ]

    def unpack(self, folder: Path) -> Path:
        """Copy what the image copies, and nothing else, to `folder`; returns it."""
        for source, target in self.copies:
            here, there = ROOT / source, folder / target
            if here.is_dir():
                shutil.copytree(here, there, ignore=shutil.ignore_patterns("__pycache__", "Dockerfile"))
            else:
                shutil.copy(here, there)
        return folder


def read(dockerfile: Path) -> Image:
    text = re.sub(r"^\s*#.*\n", "", dockerfile.read_text(), flags=re.MULTILINE)
    lines = [line for line in re.sub(r"\\\n", " ", text).splitlines() if line.strip()]
    return Image([(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in lines)])


def environment_in(app: Path) -> dict[str, str]:
    """Variables under which `python` and `rollstream` find the installed packages and `app`, no checkout.

    `-S` leaves out the .pth files by which an editable install would show it the whole repository.
    """
    tools = app.with_name(f"{app.name}-bin")
    tools.mkdir(exist_ok=True)
    commands = {"python": f'"{sys.executable}" -S', "rollstream": "python -m services.console"}
    for name, command in commands.items():
        (tools / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (tools / name).chmod(0o755)
    packages = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    return {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "PYTHONPATH": ":".join([str(app), *packages]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(tools),
    }
