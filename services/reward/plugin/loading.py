"""A user's function from its file or entry point. It is code that the operator names, never a request."""

import importlib.util
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

GROUP = "rollstream.scorers"


def load_function(path: Path | None, function: str, entry_point: str | None) -> Callable[..., Any]:
    """Raises:
    ValueError: it is not there, it is no function, or its file cannot be run.
    """
    where = entry_point or f"{path}:{function}"
    try:
        found = _from_file(path, function) if path is not None else _from_entry_point(str(entry_point))
    except ValueError:
        raise
    except Exception as error:  # whatever the user's file raises while it is run
        raise ValueError(f"{where} cannot be loaded: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise ValueError(f"{where} is a {type(found).__name__}, not a function")
    return found


def _from_file(path: Path, function: str) -> Any:
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    name = f"rollstream_plugin_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} is no Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and the like look their module up
    spec.loader.exec_module(module)
    if not hasattr(module, function):
        known = ", ".join(name for name in vars(module) if callable(vars(module)[name])) or "no function"
        raise ValueError(f"{path} has no function {function!r}; it has {known}. Set function")
    return getattr(module, function)


def _from_entry_point(name: str) -> Any:
    if ":" in name:
        return EntryPoint("", name, GROUP).load()
    found = entry_points(group=GROUP, name=name)
    if not found:
        known = ", ".join(sorted(entry_points(group=GROUP).names)) or "none"
        raise ValueError(f"no installed package has an entry point {name!r} of group {GROUP}; known: {known}")
    return next(iter(found)).load()
