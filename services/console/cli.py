"""The `rollstream` command. Heavy imports wait until a command runs, so that help answers at once."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.console.dead_cli import dead_app
from services.console.options import TAKES_OVERRIDES, OrRunFile, RunFile, RunName

if TYPE_CHECKING:
    from services.console.runs import RunAbsent

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(dead_app, name="dead")
DEMO = Path("configs/demo.toml")


def main() -> None:
    """Entry point of the `rollstream` command: bad input ends with one sentence and status 2."""
    try:
        app()
    except ValueError as error:
        from shared.config import fail

        fail(str(error))


def _print_version(wanted: bool) -> None:
    if wanted:
        from services.console.version import version

        print(f"rollstream {version()}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """PPO post-training of language models as decoupled services."""


@app.command(**TAKES_OVERRIDES)
def up(
    context: typer.Context,
    config: RunFile,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on from the run's newest checkpoint, as --learner.resume true."),
    ] = False,
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


@app.command(**TAKES_OVERRIDES)
def demo(
    context: typer.Context,
    config: RunFile = DEMO,
    seed: Annotated[int, typer.Option(help="Seed of the warm start and of the run.")] = 0,
) -> None:
    """Train a tiny model on arithmetic word problems by PPO, on CPU, in a few minutes."""
    from services.console.demo import demo as run_demo

    raise typer.Exit(run_demo(config, seed, context.args))


@app.command(**TAKES_OVERRIDES)
def config(context: typer.Context, config: RunFile) -> None:
    """Print the configuration of all services with everything filled in, as TOML."""
    from services.console.resolved import resolve
    from services.console.toml import to_toml

    print(to_toml(resolve(config, context.args).public_tables()), end="")


@app.command(**TAKES_OVERRIDES)
def status(context: typer.Context, run: RunName = None, config: OrRunFile = None) -> None:
    """Who takes part in a run, with which policy version, how stale its data is and how fast it goes."""
    from services.console.progress import Progress
    from services.console.remains import remains
    from services.console.runs import RunAbsent, opened
    from services.console.screen import print_legend, print_views
    from services.console.view import LEGEND, status_views

    try:
        with opened(run, config, context.args) as found:
            progress = Progress(found.streams, with_past=True)
            progress.refresh()
    except RunAbsent as absent:
        return _print_end(absent)
    past = [] if progress.workers else remains(found.folder)
    print_views(status_views(progress, past))
    print_legend(LEGEND)


@app.command(**TAKES_OVERRIDES)
def queues(context: typer.Context, run: RunName = None, config: OrRunFile = None) -> None:
    """How full each stream is: entries, pending and untaken ones, age of the oldest, consumers."""
    from services.console.queues import LEGEND, queue_table, read_queues
    from services.console.remains import remains
    from services.console.runs import RunAbsent, opened
    from services.console.screen import print_legend, print_views
    from shared.workers import list_workers

    try:
        with opened(run, config, context.args) as found:
            past = [] if list_workers(found.streams) else remains(found.folder)
            print_views([found.streams.run, *past, queue_table(read_queues(found.streams))])
    except RunAbsent as absent:
        return _print_end(absent)
    print_legend(LEGEND)


def _print_end(absent: "RunAbsent") -> None:
    """What a run reached whose Redis ended with it; raises it again if the run did not come to its end."""
    from services.console.remains import read_report, remains
    from services.console.screen import print_views

    if read_report(absent.folder) is None:
        raise absent
    print_views([absent.folder.name, *remains(absent.folder)])


@app.command(**TAKES_OVERRIDES)
def peek(
    context: typer.Context,
    stream: Annotated[str, typer.Argument(help="prompts, rollouts, experiences, dead or events")],
    run: RunName = None,
    config: OrRunFile = None,
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="How many of the newest entries.")] = 3,
) -> None:
    """Show the newest entries of a stream, decoded, without touching their delivery."""
    from services.console.peek import peek as read
    from services.console.runs import opened
    from services.console.screen import print_views

    with opened(run, config, context.args) as found:
        print_views(read(found.streams, stream, count) or [f"stream {stream} is empty at this moment"])


@app.command(**TAKES_OVERRIDES)
def workers(context: typer.Context, run: RunName = None, config: OrRunFile = None) -> None:
    """Every process of a run, and dead ones that hold work: state, weights, heartbeat, what it has done."""
    from services.console.runs import opened
    from services.console.screen import print_legend, print_views
    from services.console.workers import LEGEND, read_workers, work_table, workers_table

    with opened(run, config, context.args) as found:
        known = read_workers(found.streams)
    print_views([found.streams.run, workers_table(known), "", work_table(known)])
    print_legend(LEGEND)


@app.command(**TAKES_OVERRIDES)
def trace(
    context: typer.Context,
    id: Annotated[str, typer.Argument(help="Id of the prompt, as in logs, `peek` and `dead list`.")],
    run: RunName = None,
    config: OrRunFile = None,
) -> None:
    """One prompt through every hop: where it is, and when who did what to it, under which version."""
    from services.console.runs import RunAbsent, opened
    from services.console.screen import print_views
    from services.console.trace import absence, on_disk, trace_table
    from services.console.trace import trace as read

    try:
        with opened(run, config, context.args) as found:
            places, moments = read(found.streams, id, found.folder)
    except RunAbsent as absent:
        places, moments = on_disk(id, absent.folder)
        if not places:
            raise ValueError(f"nothing is known of {id!r}: {absence(absent.folder)}; {absent}") from absent
    print_views([f"{id}: {'; '.join(places)}", trace_table(moments)])


@app.command(**TAKES_OVERRIDES)
def completions(
    context: typer.Context,
    run: RunName = None,
    config: OrRunFile = None,
    step: Annotated[int | None, typer.Option(help="Training step; by default the newest.")] = None,
    heldout: Annotated[bool, typer.Option("--heldout", help="Those of the held-out evaluation.")] = False,
    best: Annotated[bool | None, typer.Option("--best/--worst", help="Sort by reward.")] = None,
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="How many.")] = 5,
) -> None:
    """Show sample completions of a run: prompt, completion, ground truth, reward and its components."""
    from services.console.completions import FILES, completions_table, read_completions
    from services.console.resolved import CONFIG
    from services.console.runs import find_folder, read_settings
    from services.console.screen import print_views

    folder = find_folder(run, config, context.args, holding=FILES)
    if config is None and context.args:
        if (folder / CONFIG).exists():
            read_settings(folder, context.args)  # a misspelt one is told as such
        raise ValueError(f"{context.args[0]} was not expected: overrides go with --config")
    chosen, rows = read_completions(folder, step, heldout)
    print_views([completions_table(f"{folder.name}, step {chosen}", rows, count, best)])
