"""The `rollstream` command. Heavy imports wait until a command runs, so that help answers at once."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from shared.stream import Streams

app = typer.Typer(
    help="PPO post-training of language models as decoupled services.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
TAKES_OVERRIDES = {"allow_extra_args": True, "ignore_unknown_options": True}
OVERRIDES = "Any key can be overridden: --table.key value, for example --learner.kl_coef 0.02."
DEMO = Path("configs/demo.toml")

RunFile = Annotated[Path, typer.Option("--config", help="TOML file of the run.")]


def main() -> None:
    """Entry point of the `rollstream` command: bad input ends with one sentence and status 2."""
    from shared.config import fail

    try:
        app()
    except ValueError as error:
        fail(str(error))


@app.command(context_settings=TAKES_OVERRIDES, epilog=OVERRIDES)
def up(
    context: typer.Context,
    config: RunFile,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the run's newest checkpoint.")] = False,
) -> None:
    """Start the local stack, train, and stop everything when the learner ends."""
    started = time.monotonic()
    from services.console.resolved import resolve
    from services.console.run import conclude, session, train

    overrides = ["--learner.resume=true"] if resume else []
    resolved = resolve(config, [*context.args, *overrides])
    status = session(
        resolved.console.stop_timeout, lambda launcher, screen: train(resolved, launcher, screen, {})
    )
    if status == 0:
        conclude(resolved.run.path, started)
    raise typer.Exit(status)


@app.command(context_settings=TAKES_OVERRIDES, epilog=OVERRIDES)
def demo(
    context: typer.Context,
    config: RunFile = DEMO,
    seed: Annotated[int, typer.Option(help="Seed of the warm start and of the run.")] = 0,
) -> None:
    """Train a tiny model on arithmetic word problems by PPO, on CPU, in a few minutes."""
    from services.console.demo import demo as run_demo

    raise typer.Exit(run_demo(config, seed, context.args))


@app.command(context_settings=TAKES_OVERRIDES, epilog=OVERRIDES)
def config(context: typer.Context, config: RunFile) -> None:
    """Print the configuration of all services with everything filled in, as TOML."""
    from services.console.resolved import resolve
    from services.console.toml import to_toml

    print(to_toml(resolve(config, context.args).public_tables()), end="")


@app.command(context_settings=TAKES_OVERRIDES, epilog=OVERRIDES)
def status(context: typer.Context, config: RunFile) -> None:
    """Who takes part in a run, with which policy version, how stale its data is and how fast it goes."""
    from services.console.progress import Progress
    from services.console.screen import print_views
    from services.console.view import status_views

    progress = Progress(_streams(config, context.args), with_past=True)
    progress.refresh()
    print_views(status_views(progress))


@app.command(context_settings=TAKES_OVERRIDES, epilog=OVERRIDES)
def queues(context: typer.Context, config: RunFile) -> None:
    """How full each stream is: entries, pending and untaken ones, age of the oldest, consumers."""
    from services.console.queues import queue_table, read_queues
    from services.console.screen import print_views

    print_views([queue_table(read_queues(_streams(config, context.args)))])


@app.command(context_settings=TAKES_OVERRIDES, epilog=OVERRIDES)
def peek(
    context: typer.Context,
    stream: Annotated[str, typer.Argument(help="prompts, rollouts, experiences, dead or events")],
    config: RunFile,
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="How many of the newest entries.")] = 3,
) -> None:
    """Show the newest entries of a stream, decoded, without touching their delivery."""
    from services.console.peek import peek as read
    from services.console.screen import print_views

    print_views(read(_streams(config, context.args), stream, count) or [f"stream {stream} is empty"])


@app.command()
def completions(
    run: Annotated[str | None, typer.Option(help="Name or folder of a run; by default the newest.")] = None,
    step: Annotated[int | None, typer.Option(help="Training step; by default the newest.")] = None,
    heldout: Annotated[bool, typer.Option("--heldout", help="Those of the held-out evaluation.")] = False,
    best: Annotated[bool | None, typer.Option("--best/--worst", help="Sort by reward.")] = None,
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="How many.")] = 5,
    runs: Annotated[Path, typer.Option(help="The folder of all runs.")] = Path("runs"),
) -> None:
    """Show sample completions of a run: prompt, completion, ground truth, reward and its components."""
    from services.console.completions import completions_table, find_run, read_completions
    from services.console.screen import print_views

    folder = find_run(runs, run)
    chosen, rows = read_completions(folder, step, heldout)
    print_views([completions_table(f"{folder.name}, step {chosen}", rows, count, best)])


def _streams(config: Path, overrides: list[str]) -> "Streams":
    """The streams of the configured run.

    Raises:
    ValueError: bad configuration, or Redis cannot be reached or is not fit.
    """
    import os

    from services.console.config import ConsoleSettings
    from shared.config import load_settings
    from shared.stream import Streams, check_server, connect

    settings = load_settings(ConsoleSettings, config, os.environ, overrides)
    client = connect(settings.redis.url, timeout=5.0)
    check_server(client, settings.redis.url)
    return Streams(client, settings.run.name)
