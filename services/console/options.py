"""The options that commands have in common. No heavy imports: help answers at once."""

from pathlib import Path
from typing import Annotated

import typer

TAKES_OVERRIDES = {"allow_extra_args": True, "ignore_unknown_options": True}
OVERRIDES = "Any key can be overridden: --table.key value, for example --learner.kl_coef 0.02."

RunFile = Annotated[Path, typer.Option("--config", help="TOML file of the run.")]

# Of the commands that look into a run; `services.console.runs` finds it.
RunName = Annotated[
    str | None, typer.Option("--run", help="Name or folder of a run; by default the newest one in runs/.")
]
OrRunFile = Annotated[
    Path | None,
    typer.Option("--config", help="TOML file of the run, instead of --run; for those started by hand."),
]
