"""The `rollstream` command. Heavy imports wait until a command runs, so that help answers at once."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="PPO post-training of language models as decoupled services.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
TAKES_OVERRIDES = {"allow_extra_args": True, "ignore_unknown_options": True}
OVERRIDES = "Any key can be overridden: --table.key value, for example --learner.kl_coef 0.02."

Config = Annotated[Path, typer.Option(help="TOML file of the run.")]


def main() -> None:
    """Entry point of the `rollstream` command: bad input ends with one sentence and status 2."""
    try:
        app()
    except ValueError as error:
        from shared.config import fail

        fail(str(error))


@app.command(context_settings=TAKES_OVERRIDES, epilog=OVERRIDES)
def up(context: typer.Context, config: Config) -> None:
    """Start the local stack, train, and stop everything when the learner ends."""
    from services.console.resolved import resolve
    from services.console.run import train

    raise typer.Exit(train(resolve(config, context.args)))
