"""Named points in a service's code at which its process is struck, from within but not by the product: the
chaos entry point wraps the function in question before the service starts.
"""

import errno
import functools
import importlib
import inspect
import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

VARIABLE = "CHAOS_STRIKE"

What = Literal["kill", "stop", "disk_full", "nan_gradient"]


class Strike(NamedTuple):
    """What happens to a process when it has called a function so many times."""

    function: str
    """As `module:name` or `module:Class.name`."""
    when: Literal["before", "after"] = "after"
    """`after`: its effect is there, its caller has not seen it."""
    call: int = 1
    what: What = "kill"
    rank: int | None = None
    """Of several ranks of the learner, the one that suffers it; None for all."""

    def variables(self) -> dict[str, str]:
        """The environment that makes a process suffer it."""
        return {VARIABLE: json.dumps(self)}


def install() -> None:
    """Wrap the function of the strike that the environment asks for, if it does."""
    if VARIABLE not in os.environ:
        return
    strike = Strike(*json.loads(os.environ[VARIABLE]))
    if strike.rank not in (None, int(os.environ.get("RANK", 0))):
        return
    module, _, name = strike.function.partition(":")
    owner: Any = importlib.import_module(module)
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    setattr(owner, last, _struck(getattr(owner, last), strike))


def _struck(function: Callable[..., Any], strike: Strike) -> Callable[..., Any]:
    calls: Counter[str] = Counter()

    def come_to(when: str, arguments: tuple[Any, ...]) -> None:
        calls[when] += 1
        if when == strike.when and calls[when] == strike.call:
            _ACTIONS[strike.what](arguments)

    @functools.wraps(function)
    async def awaited(*arguments: Any, **named: Any) -> Any:
        come_to("before", arguments)
        result = await function(*arguments, **named)
        come_to("after", arguments)
        return result

    @functools.wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        come_to("before", arguments)
        result = function(*arguments, **named)
        come_to("after", arguments)
        return result

    return awaited if inspect.iscoroutinefunction(function) else called


def _disk_full(_: tuple[Any, ...]) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _nan_gradient(arguments: tuple[Any, ...]) -> None:
    """Of a function whose first argument is the models, before it steps their optimizers."""
    next(parameter for parameter in arguments[0].policy.parameters()).grad.mul_(float("nan"))


_ACTIONS: dict[What, Callable[[tuple[Any, ...]], None]] = {
    "kill": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda _: os.kill(os.getpid(), signal.SIGSTOP),
    "disk_full": _disk_full,
    "nan_gradient": _nan_gradient,
}
