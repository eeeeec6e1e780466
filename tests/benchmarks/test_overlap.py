"""What the benchmark of overlap computes, and that its sleepers take the time they are told."""

import asyncio
import time
from pathlib import Path

import pytest

from benchmarks.overlap import real_seconds, row, steady_seconds
from benchmarks.sleepers import SleepingEngine, asleep
from services.rollout.config import RolloutConfig
from shared.entry import Entry
from shared.experience import Int32Array, Prompt, Sampling


def event(kind: str, milliseconds: int) -> Entry:
    return Entry(f"{milliseconds}-0", {"kind": kind}, b"")


def test_a_step_lasts_from_one_event_to_the_next_once_the_pipeline_is_full() -> None:
    ends = [0, 900, 1700, 2000, 3000, 4100, 5300]  # the first two differences are of the filling
    events = [event("step", end) for end in ends]
    others = [event("version", 2500), event("eval", 3500)]
    assert steady_seconds(sorted(events + others, key=lambda e: int(e.entry_id[:-2]))) == pytest.approx(1.05)


def test_a_step_that_misses_the_target_is_in_bold_unless_it_is_synchronous() -> None:
    assert row(0.5, 1.0, {0: 1.5, 1: 1.14, 2: 1.16}) == (
        "| 0.50 | 1.00 | 1.00 | 1.50 | 1.50, 1.50 | 1.14, 1.14 | **1.16, 1.16** |"
    )


def test_of_a_real_run_the_first_steps_do_not_count() -> None:
    steps = [{"time/step": 9.0, "time/wait": 8.0}] * 3
    steps += [{"time/step": float(n), "time/wait": n / 2} for n in (1, 2, 4)]
    assert real_seconds(steps) == (2.0, 1.0)


def test_the_engine_answers_so_many_prompts_at_a_time_and_names_the_versions_of_their_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SleepingEngine, "seconds", 0.05)
    monkeypatch.setattr(SleepingEngine, "slots", 2)
    prompt = Prompt(id="p", epoch=0, index=0, n=3, issued_version=1, text="", token_ids=Int32Array([1]),
                    sampling=Sampling(max_tokens=5))  # fmt: skip

    async def ask() -> tuple[float, list[list[tuple[int, int]]]]:
        engine = SleepingEngine(Path(), RolloutConfig(), 0)
        await engine.replace_weights([], 1, [])
        started = time.monotonic()
        asked = [asyncio.create_task(engine.generate(prompt)) for _ in range(4)]
        await asyncio.wait(asked[:2])
        await asyncio.sleep(0)  # the other two have begun
        await engine.replace_weights([], 2, [])
        answers = await asyncio.gather(*asked)
        assert all(len(answer) == 3 for answer in answers)
        return time.monotonic() - started, [
            [(span.version, span.tokens) for span in answer[0].version_spans] for answer in answers
        ]

    seconds, versions = asyncio.run(ask())
    assert seconds >= 0.1
    assert versions == [[(1, 5)], [(1, 5)], [(1, 2), (2, 3)], [(1, 2), (2, 3)]]


def test_an_update_is_done_once_and_then_takes_the_time_it_is_told() -> None:
    calls: list[int] = []

    def update(number: int, more: int) -> int:
        calls.append(number)
        return number + more

    slow = asleep(update, 0.05)
    assert slow(1, more=2) == 3
    started = time.monotonic()
    assert slow(5, more=6) == 3
    assert time.monotonic() - started >= 0.05
    assert calls == [1]
