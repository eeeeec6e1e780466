"""The concurrency controller: its laws for any load, and how it finds what an engine has room for."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from services.rollout.concurrency import DECREASE, FIRST, Concurrency
from services.rollout.engine import CACHE_BOUND, EngineLoad
from services.rollout.load_log import LoadLog

LOADS = st.builds(
    EngineLoad,
    steps=st.integers(0, 2),
    running=st.integers(0, 100),
    waiting=st.integers(0, 3),
    kv_cache_use=st.floats(0, 1),
    preempted=st.integers(0, 2),
    most_running=st.integers(1, 100),
)
OBSERVED = st.tuples(LOADS, st.floats(0, 1.5), st.booleans())


@given(st.integers(1, 200), st.lists(OBSERVED, max_size=60))
def test_whatever_the_load_the_limit_keeps_its_laws(
    bound: int, observed: Sequence[tuple[EngineLoad, float, bool]]
) -> None:
    controller, congested_before = Concurrency(bound), False
    assert controller.limit == min(FIRST, bound)
    for load, share, was_full in observed:
        before = controller.limit
        in_flight = int(before * share)
        controller.observe(load, in_flight, was_full)
        after = controller.limit
        assert 1 <= after <= bound
        room = load.kv_cache_use < CACHE_BOUND and load.running < load.most_running
        congested = load.preempted > 0 or (load.waiting > 0 and not room)
        if in_flight > before:
            assert after == before, "the last decrease is still at work"
        elif congested and load.steps:
            assert after <= max(1, in_flight) and after <= max(1, before * DECREASE)
            congested_before = True
        elif load.waiting or not room or not was_full or not load.steps:
            assert after == before
        else:
            assert after == min(bound, before + 1 if congested_before else 2 * before)


class Engine:
    """Has room for so many groups; the rest waits. A tenth of what runs ends in each interval."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.in_flight = 0

    def interval(self, controller: Concurrency) -> None:
        self.in_flight -= -(-self.in_flight // 10)
        self.in_flight = max(self.in_flight, controller.limit)  # prompts are never short
        running = min(self.in_flight, self.room)
        load = EngineLoad(1, running, self.in_flight - running, 0.5, preempted=0, most_running=self.room)
        controller.observe(load, self.in_flight, was_full=True)


@given(st.integers(1, 300), st.integers(1, 300))
def test_the_limit_comes_to_what_the_engine_has_room_for(room: int, bound: int) -> None:
    controller, engine = Concurrency(bound), Engine(room)
    for _ in range(1000):
        engine.interval(controller)
    limits = []
    for _ in range(200):
        engine.interval(controller)
        limits.append(controller.limit)
    most = min(room + 1, bound)
    assert max(limits) <= most
    assert max(limits) >= min(room, bound)
    assert min(limits) >= int(most * DECREASE) or min(limits) == 1
    if bound <= room:
        assert min(limits) == max(limits) == bound, "an engine with room for all is never held back"


def test_a_free_engine_is_full_within_a_second() -> None:
    controller, engine, intervals = Concurrency(64), Engine(1000), 0
    while controller.limit < 64:
        engine.interval(controller)
        intervals += 1
    assert intervals <= 4, "of a quarter of a second each"


def test_room_that_opens_up_is_found_again() -> None:
    controller, engine = Concurrency(100), Engine(10)
    for _ in range(200):
        engine.interval(controller)
    assert controller.limit <= 11
    engine.room = 60
    for _ in range(60):
        engine.interval(controller)
    assert controller.limit >= 45


def test_one_burst_of_waiting_counts_once_however_long_it_takes_to_drain() -> None:
    controller = Concurrency(64)
    for _ in range(4):
        controller.observe(EngineLoad(1, 10, 0, 0.1, 0, 99), controller.limit, was_full=True)
    crowded = EngineLoad(steps=1, running=30, waiting=34, kv_cache_use=1.0, preempted=0, most_running=99)
    for _ in range(20):
        controller.observe(crowded, most_in_flight=64, was_full=True)
    assert controller.limit == 64 * DECREASE


def test_prompts_that_wait_for_their_turn_in_an_engine_with_room_change_nothing() -> None:
    controller = Concurrency(64)
    burst = EngineLoad(steps=1, running=20, waiting=30, kv_cache_use=0.3, preempted=0, most_running=256)
    for _ in range(10):
        controller.observe(burst, most_in_flight=8, was_full=True)
    assert controller.limit == FIRST


def test_an_engine_that_took_no_step_changes_nothing() -> None:
    controller = Concurrency(64)
    stale = EngineLoad(steps=0, running=99, waiting=5, kv_cache_use=1.0, preempted=0, most_running=99)
    for _ in range(10):
        controller.observe(stale, most_in_flight=8, was_full=True)
    assert controller.limit == FIRST


def record(log: LoadLog, now: float, running: int, waiting: int, preempted: int = 0) -> None:
    log.record(running, waiting, kv_cache_use=running / 100, preempted=preempted, now=now)


def load(steps: int, running: int, waiting: int, preempted: int = 0) -> EngineLoad:
    return EngineLoad(steps, running, waiting, running / 100, preempted, most_running=64)


def test_only_requests_that_waited_all_the_time_count_as_waiting() -> None:
    log = LoadLog(most_running=64)
    record(log, 0.0, running=10, waiting=20)
    record(log, 0.1, running=30, waiting=0)
    record(log, 0.2, running=31, waiting=5, preempted=1)
    assert log.take() == load(3, 31, waiting=0, preempted=1)
    assert log.take() == load(0, 31, waiting=5), "as it was last"
    record(log, 0.3, running=30, waiting=7)
    record(log, 0.4, running=40, waiting=4, preempted=2)
    assert log.take() == load(2, 40, waiting=4, preempted=2)


def test_what_a_weight_update_sent_back_into_the_queue_is_no_sign_of_load() -> None:
    log = LoadLog(most_running=64)
    log.settle(now=10.0)
    record(log, 10.1, running=2, waiting=30, preempted=30)
    assert log.take() == load(1, 2, waiting=0)
    record(log, 13.0, running=2, waiting=30)
    record(log, 13.1, running=2, waiting=30, preempted=3)
    assert log.take() == load(2, 2, waiting=30, preempted=3), "it never settled"
