"""The contract between the scoring core and the scorers: what each is built from, is asked, and answers."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Protocol, runtime_checkable

from pydantic import AfterValidator, Field, FiniteFloat

from shared.config import Table
from shared.scoring import ScoreItem

if TYPE_CHECKING:
    from services.reward.pool import Pool

Kind = Literal["rule", "neural", "external", "plugin"]


NEVER = math.inf
"""The end of the time for a batch that has none."""


class Failure(NamedTuple):
    """Why an item has no number from a scorer."""

    status: Literal["error", "timeout", "invalid"]
    """`invalid`: it can never be scored as sent. `error` and `timeout`: another try may succeed."""
    cause: str
    """Continues a sentence that begins with the scorer's name: `needs a ground_truth, and ...`."""


class Steps(NamedTuple):
    """The outcome of a scorer that judges parts of a response, such as a process reward model."""

    value: float
    """The one number that enters the reward."""
    steps: tuple[float, ...]
    """One number per part, in order; told beside the components."""
    ends: tuple[int, ...] = ()
    """After how many characters of the response each part ends; none where that is not known."""


Outcome = float | Steps | Failure
"""What a scorer gives for one item. The core turns a number that is not finite into an `error`."""


OVERDUE = Failure("timeout", "was not done before the time for the whole request was over")


class Unscorable(ValueError):
    """The item cannot be scored as sent, however often it is tried: it is `invalid`, not worth 0.

    The message continues a sentence that begins with the scorer's name.
    """


class OutOfTime(Exception):
    """The item could not be decided in its time, as on a busy machine: it is a `timeout`, not worth 0.

    For functions in the pool. The message continues a sentence that begins with the scorer's name.
    """


class Scorer(Protocol):
    """Built once from its table, then asked from many threads at the same time."""

    name: str
    """Its name in the configuration, and of its component in the results."""
    kind: Kind
    description: str
    """One sentence for `GET /v1/scorers`."""
    parameters: dict[str, Any]
    """The settings in force, for `GET /v1/scorers`: JSON values, no secrets."""
    waits: bool
    """Whether its work is done in other processes or threads, so that another scorer can work meanwhile."""

    def score(
        self, items: Sequence[ScoreItem], deadline_seconds: float, until: float = NEVER
    ) -> list[Outcome]:
        """One outcome per item, in order. Never raises for an item: its trouble is its `Failure`.

        deadline_seconds: how long work on one item may take once it has begun. What takes longer is given
            up as a `timeout`; waiting for a turn behind other items does not count.
        until: moment (`time.monotonic`) at which what is not done is a `timeout` too, begun or not. For what
            is decided in place, and takes no time to speak of, it means nothing.
        """

    def close(self) -> None:
        """Free what it holds; nothing is asked of it any more."""


@runtime_checkable
class SoonScorer(Protocol):
    """A scorer that can also be awaited, so that many requests need no thread each."""

    async def score_soon(
        self, items: Sequence[ScoreItem], deadline_seconds: float, until: float = NEVER
    ) -> list[Outcome]:
        """As `Scorer.score`, for an event loop: it hands the work on at once."""


class Context(NamedTuple):
    """What the service lends to its scorers."""

    pool: "Pool"
    """The killable processes, shared by all scorers. None runs before the first item that needs one."""


def _has_width(clip: tuple[float, float]) -> tuple[float, float]:
    if clip[0] >= clip[1]:
        raise ValueError(f"the lowest value {clip[0]} must be below the highest {clip[1]}")
    return clip


Clip = Annotated[tuple[FiniteFloat, FiniteFloat], AfterValidator(_has_width)]
"""Lowest and highest value."""


class ScorerConfig(Table):
    """What every `[reward.scorers.NAME]` table may hold. A kind adds its own keys and builds its scorer."""

    kind: Kind = "rule"
    weight: FiniteFloat = 1.0
    """Factor in the weighted sum. 0 reports the component only."""
    place_steps: bool = False
    """Of a scorer that judges steps: each step's number enters the sum, and is earned at the step's end."""
    threshold: FiniteFloat | None = None
    """Where it is set, 1 enters the sum for a number that reaches it and 0 for any other."""
    clip: Clip | None = None
    """Lowest and highest number that enters the sum. The reported component is not clipped."""
    deadline_seconds: float | None = Field(default=None, gt=0)
    """How long one item may take; without it, `deadline_seconds` of `[reward]`."""

    def build(self, name: str, context: Context) -> Scorer:
        """The scorer that this table describes. Called once, at the service's start.

        Raises:
        ValueError: what it needs is not there; the service does not start.
        """
        raise NotImplementedError
