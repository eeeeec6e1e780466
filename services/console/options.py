"""The options that commands have in common. No heavy imports: help answers at once."""

from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand


class Overridable(TyperCommand):
    """A command that takes overrides beside its own options, in any order; they are `args` of its context.

    Raises:
    ValueError: an option that is neither.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own, overrides = _apart(args)
        known = [name for option in self.get_params(ctx) for name in (*option.opts, *option.secondary_opts)]
        for word in takewhile("--".__ne__, own):
            name = word.partition("=")[0]
            if name.startswith("--") and name not in known:
                from shared.config import suggestion

                near = suggestion(name, [option for option in known if option.startswith("--")])
                raise ValueError(f"option {name} is unknown.{near} Overrides have the form --table.key value")
        rest = super().parse_args(ctx, own)
        ctx.args = [*overrides, *ctx.args]
        return rest


def _apart(words: list[str]) -> tuple[list[str], list[str]]:
    """A command's own words, and those of the overrides with their values; after `--` all are its own."""
    own: list[str] = []
    overrides: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        if word == "--":
            return [*own, word, *left], overrides
        name, has_value, _ = word.partition("=")
        if not (name.startswith("--") and "." in name):
            own.append(word)
            continue
        overrides.append(word)
        if not has_value and left and not left[0].startswith("--"):
            overrides.append(left.pop(0))
    return own, overrides


TAKES_OVERRIDES: dict[str, Any] = {
    "cls": Overridable,
    "context_settings": {"allow_extra_args": True},
    "epilog": "Any key can be overridden: --table.key value, for example --learner.kl_coef 0.02.",
}

RunFile = Annotated[Path, typer.Option("--config", help="TOML file of the run.")]

# Of the commands that look into a run; `services.console.runs` finds it.
RunName = Annotated[
    str | None, typer.Option("--run", help="Name or folder of a run; by default the newest one in runs/.")
]
OrRunFile = Annotated[
    Path | None,
    typer.Option("--config", help="TOML file of the run, instead of --run; for those started by hand."),
]
