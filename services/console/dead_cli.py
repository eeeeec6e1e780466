"""The commands `rollstream dead list | show | requeue | drop`."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.console.options import TAKES_OVERRIDES, OrRunFile, RunName

if TYPE_CHECKING:
    from shared.dead_letters import DeadLetters
    from shared.entry import Entry

dead_app = typer.Typer(
    help="Groups that could not be generated, scored or trained on: see why, requeue or drop them.",
    no_args_is_help=True,
)

Id = Annotated[str, typer.Argument(help="Id of the prompt, or of the letter where it has none.")]
AnyId = Annotated[str | None, typer.Argument(help="Id of the prompt, or of the letter where it has none.")]
All = Annotated[bool, typer.Option("--all", help="All letters, or those that --cause and --stage choose.")]
Cause = Annotated[
    str | None, typer.Option(help="Only those with this text in their cause, which is free text: no kind.")
]
Stage = Annotated[str | None, typer.Option(help="Only those of this service: rollout, reward, learner.")]


@dead_app.command("list", **TAKES_OVERRIDES)
def list_letters(
    context: typer.Context,
    cause: Cause = None,
    stage: Stage = None,
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="How many of the newest.")] = 20,
    run: RunName = None,
    config: OrRunFile = None,
) -> None:
    """One line for each dead letter: when, which prompt, which service gave it up, and why."""
    from services.console.dead import find, list_table
    from services.console.runs import opened
    from services.console.screen import print_views
    from shared.dead_letters import DeadLetters

    with opened(run, config, context.args) as found:
        letters = find(DeadLetters(found.streams), cause=cause, stage=stage)
    none = "no dead letters" if cause is stage is None else "there are no such dead letters"
    print_views([list_table(letters, count) if letters else none])


@dead_app.command(**TAKES_OVERRIDES)
def show(context: typer.Context, id: Id, run: RunName = None, config: OrRunFile = None) -> None:
    """A dead letter whole: cause, attempts, the way it came, prompt and completions."""
    from services.console.dead import find
    from services.console.peek import entry_panel
    from services.console.runs import opened
    from services.console.screen import print_views
    from shared.dead_letters import DeadLetters

    with opened(run, config, context.args) as found:
        letters = find(DeadLetters(found.streams), id)
    print_views([entry_panel("dead", letter) for letter in letters])


@dead_app.command(**TAKES_OVERRIDES)
def requeue(
    context: typer.Context,
    id: AnyId = None,
    everything: All = False,
    cause: Cause = None,
    stage: Stage = None,
    run: RunName = None,
    config: OrRunFile = None,
) -> None:
    """Requeue dead training groups: the learner issues their prompts again, before new ones."""
    from shared.dead_letters import DeadLetters

    chosen = (id, everything, cause, stage)
    told = "requeued; the learner issues them when it next has credits, or when the run is resumed"
    _settle(run, config, context.args, chosen, DeadLetters.requeue, told)


@dead_app.command(**TAKES_OVERRIDES)
def drop(
    context: typer.Context,
    id: AnyId = None,
    everything: All = False,
    cause: Cause = None,
    stage: Stage = None,
    run: RunName = None,
    config: OrRunFile = None,
) -> None:
    """Delete dead letters for good."""
    from shared.dead_letters import DeadLetters

    _settle(run, config, context.args, (id, everything, cause, stage), DeadLetters.drop, "dropped")


def _settle(
    run: str | None,
    config: Path | None,
    overrides: list[str],
    chosen: tuple[str | None, bool, str | None, str | None],
    act: "Callable[[DeadLetters, Entry], bool]",
    told: str,
) -> None:
    """Status 1 if any letter was refused.

    Raises:
    ValueError: it was not said which letters, or there is no such letter.
    """
    from services.console.dead import find, settle
    from services.console.runs import opened
    from shared.dead_letters import DeadLetters

    id, everything, cause, stage = chosen
    if (id is None) != everything:
        raise ValueError("say which dead letters: the id of one prompt, or --all (with --cause, --stage)")
    with opened(run, config, overrides) as found:
        letters = DeadLetters(found.streams)
        done, refused = settle(find(letters, id, cause, stage), lambda letter: act(letters, letter))
    print(f"{done} {told}")
    for reason in refused:
        typer.echo(f"refused: {reason}", err=True)
    if refused:
        raise typer.Exit(1)
