"""When too many groups die, people hear of it, and then the run ends."""

import pytest

from services.learner.mortality import Mortality
from shared.entry import Entry
from shared.stream import Streams

LETTER = Entry("1-1", {"id": "p", "stage": "reward", "cause": "the judge is away"}, b"")


def live_through(mortality: Mortality, fates: str) -> None:
    """A letter for each group: `d` for one that dies."""
    for fate in fates:
        mortality.died(LETTER) if fate == "d" else mortality.arrived()


def alarms(streams: Streams) -> list[str]:
    return [e.fields["text"] for e in streams.tail("events", 100) if e.fields["kind"] == "many_dead"]


def test_people_are_told_once_while_more_than_a_quarter_dies(streams: Streams) -> None:
    mortality = Mortality(streams, credits=4)
    live_through(mortality, "d..." * 8)
    assert alarms(streams) == []
    live_through(mortality, "d.d.d." * 4)
    (text,) = alarms(streams)
    assert text.startswith("5 of the last 16 groups") and "reward service: the judge is away" in text
    live_through(mortality, "." * 16 + "d." * 8)
    assert len(alarms(streams)) == 2


def test_a_run_of_whose_groups_few_arrive_ends_though_no_row_of_deaths_is_long(streams: Streams) -> None:
    """One arrival in ten would let it go on for ever."""
    mortality = Mortality(streams, credits=4)
    with pytest.raises(
        ValueError, match=r"1\d of the last 16 groups were dead-lettered, .*the judge is away"
    ):
        live_through(mortality, "dddd." * 100)


def test_a_run_of_whose_groups_more_than_half_die_goes_on(streams: Streams) -> None:
    live_through(Mortality(streams, credits=4), "dd." * 100)
