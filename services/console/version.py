"""The version of this project."""

import importlib.metadata
import tomllib
from pathlib import Path


def version() -> str:
    """Of the installed package; in an image, which has the code but no package, of `pyproject.toml`."""
    try:
        return importlib.metadata.version("rollstream")
    except importlib.metadata.PackageNotFoundError:
        text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
        return str(tomllib.loads(text)["project"]["version"])
