"""Where people watch a run: one coloured line per event, below them a live view if there is a terminal."""

import os
import re
import time
from collections.abc import Mapping, Sequence
from types import TracebackType

from rich.console import Console, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.text import Text

COLOURS = {"console": "white", "redis": "red", "rollout": "cyan", "reward": "magenta", "learner": "green"}
_LOG_LINE = re.compile(r"^\d\d:\d\d:\d\d (?P<level>[A-Z]+) (?P<service>\w+) (?P<text>.*)$")
_STEP_LINE = re.compile(r"step \d+  ")  # of the learner: the live view shows the newest in its place
_LEVEL_STYLES: Mapping[str, str] = {"WARNING": "yellow", "ERROR": "bold red", "CRITICAL": "bold red"}


def is_terminal(console: Console) -> bool:
    """Whether a view that redraws itself makes sense: a person's terminal, not a file or a CI job."""
    return console.is_terminal and not os.environ.get("CI")


def print_views(views: Sequence[RenderableType]) -> None:
    """Print tables and texts one below the other. Texts are not broken into lines: a terminal does that."""
    console = Console(highlight=False)
    for view in views:
        console.print(view, soft_wrap=isinstance(view, str | Text))


def clock(at: float, digits: int = 0) -> str:
    """The local time of day, with so many digits of a second."""
    fraction = f"{at % 1:.{digits}f}"[1:] if digits else ""
    return time.strftime("%H:%M:%S", time.localtime(at)) + fraction


def print_legend(text: str) -> None:
    """What the columns above mean."""
    Console(highlight=False).print(f"\n{text}", style="dim", markup=False)


class Screen:
    """Prints lines; inside its context also keeps the newest view at the bottom of a terminal."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live = is_terminal(self.console)
        self._view: Live | None = None

    def __enter__(self) -> "Screen":
        if self.live:
            self._view = Live(console=self.console, auto_refresh=False, transient=False)
            self._view.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._view:
            self._view.stop()
            self._view = None

    def say(self, service: str, text: str, style: str = "") -> None:
        """One event: time, service in its colour, text."""
        line = Text.assemble(
            (time.strftime("%H:%M:%S "), "dim"),
            (f"{service:<8}", COLOURS.get(service, "")),
            (text, style),
        )
        self.console.print(line, soft_wrap=True)

    def repeat(self, service: str, log_line: str) -> None:
        """Show a line of a service's log if it is one of our own; vLLM's and others' stay in the file."""
        found = _LOG_LINE.match(log_line)
        if found and not (self.live and _STEP_LINE.match(found["text"])):
            self.say(service, found["text"], _LEVEL_STYLES.get(found["level"], ""))
        elif log_line.startswith("error: "):
            self.say(service, log_line, "bold red")

    def show(self, view: RenderableType) -> None:
        """Put a new view in the place of the last. Nothing happens where there is no terminal."""
        if self._view:
            self._view.update(view, refresh=True)

    def fail(self, text: str) -> None:
        """A mistake or failure, in red."""
        self.console.print(f"[bold red]error:[/] {escape(text)}", soft_wrap=True)
