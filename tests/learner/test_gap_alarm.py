"""People hear of it when engine and learner disagree on the same weights."""

import msgspec

from services.learner.gap_alarm import GapAlarm
from shared.experience import Sampling
from shared.stream import Streams

PLAIN = Sampling(max_tokens=8, temperature=0.7)


def look_at(alarm: GapAlarm, *gaps: float, staleness: float = 0.0) -> None:
    for step, gap in enumerate(gaps, start=1):
        alarm.look(step, {"logprob_gap/mean": gap, "logprob_gap/max": 5 * gap, "staleness/max": staleness})


def alarms(streams: Streams) -> list[str]:
    return [e.fields["text"] for e in streams.tail("events", 100) if e.fields["kind"] == "logprob_gap"]


def test_a_wide_gap_is_told_once_each_time_that_it_opens(streams: Streams) -> None:
    look_at(GapAlarm(streams, PLAIN), 0.01, 0.4, 0.5, 0.02, 0.3)
    first, second = alarms(streams)
    assert first.startswith("step 2: engine and learner are 0.400 apart per token on the same weights (2.000")
    assert second.startswith("step 5:")


def test_stale_data_and_cut_distributions_raise_no_alarm(streams: Streams) -> None:
    look_at(GapAlarm(streams, PLAIN), 1.0, staleness=1.0)
    look_at(GapAlarm(streams, msgspec.structs.replace(PLAIN, top_p=0.9)), 1.0)
    assert not alarms(streams)
