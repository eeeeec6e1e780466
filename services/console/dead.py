"""Dead letters for people: found, listed, and settled one by one."""

from collections.abc import Callable, Sequence

from rich.table import Table
from rich.text import Text

from services.console.resolved import SERVICES
from services.console.screen import clock
from shared.dead_letters import DeadLetters
from shared.entry import Entry, seconds_of

CAUSE_CHARACTERS = 100


def find(
    letters: DeadLetters, id: str | None = None, cause: str | None = None, stage: str | None = None
) -> list[Entry]:
    """Letters of a prompt id (or with that entry id), whose cause contains a text, of a stage; oldest first.

    Raises:
    ValueError: an id was given and there is no letter of it, or no service is called like the stage.
    """
    if stage not in (None, *SERVICES):
        raise ValueError(f"there is no stage {stage!r}; the stages are {', '.join(SERVICES)}")
    found = [
        letter
        for letter in letters.all()
        if id in (None, letter.id, letter.entry_id)
        and (cause is None or cause in letter.fields.get("cause", ""))
        and stage in (None, letter.fields.get("stage"))
    ]
    if id is not None and not found:
        raise ValueError(f"there is no dead letter {id!r}; `rollstream dead list` shows those there are")
    return found


def list_table(letters: Sequence[Entry], count: int) -> Table:
    """The newest `count` letters, one line each."""
    shown = letters[-count:]
    table = Table(box=None, pad_edge=False, title_justify="left")
    table.title = f"{len(shown)} of {len(letters)} dead letters"
    for name in ("at", "id", "stage", "kind", "attempts", "purpose"):
        table.add_column(name, no_wrap=True)
    table.add_column("cause", overflow="fold")
    for letter in shown:
        fields = letter.fields
        cause = " ".join(fields.get("cause", "").split())
        table.add_row(
            clock(seconds_of(letter.entry_id)),
            letter.id or letter.entry_id,
            fields.get("stage"),
            fields.get("kind"),
            fields.get("attempts"),
            fields.get("purpose", "-"),
            Text(cause if len(cause) <= CAUSE_CHARACTERS else f"{cause[:CAUSE_CHARACTERS]} …"),
        )
    return table


def settle(letters: Sequence[Entry], act: Callable[[Entry], bool]) -> tuple[int, list[str]]:
    """Do `act` to each letter. Returns how many it was done to, and why not to others.

    One that is gone meanwhile, by another person's hand, is in neither.
    """
    done, refused = 0, []
    for letter in letters:
        try:
            done += act(letter)
        except ValueError as error:
            refused.append(str(error))
    return done, refused
