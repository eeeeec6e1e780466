"""The killable processes: deadlines, deaths, limits, healing, and that none is left behind."""

import errno
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.reward.frames import Closed
from services.reward.pool import Pool, PoolConfig
from services.reward.pool_family import own_folder
from services.reward.pool_process import Nursery
from services.reward.protocol import Failure, Outcome, Steps
from shared.scoring import ScoreItem
from tests.reward.conftest import wait_for

OBEDIENT = "tests.reward.pooled:obedient"


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool(PoolConfig(workers=2, spare_workers=2, memory_mb=512))
    yield pool
    pool.close()


def run(pool: Pool, *commands: str, seconds: float = 20, metadata: Any = None, **more: Any) -> list[Outcome]:
    items = [ScoreItem(response=command, metadata=metadata or {}) for command in commands]
    return pool.run(OBEDIENT, more, items, seconds)


def is_alive(pid: float) -> bool:
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    return True


def test_outcomes_come_in_order_and_every_kind_of_trouble_stays_with_its_item(pool: Pool) -> None:
    outcomes = run(
        pool, "fine", "die", "raise of mine", "refuse this", "steps", "exit", "leave", "fine", factor=3
    )
    assert outcomes[0] == outcomes[7] == 3.0
    assert outcomes[1] == Failure("error", "gave no answer: its process was ended by signal 9")
    assert outcomes[2] == Failure("error", "raised RuntimeError: of mine")
    assert outcomes[3] == Failure("invalid", "wants something else than this")
    assert outcomes[4] == Steps(1.0, (0.25, 0.75))
    assert outcomes[5] == Failure("error", "gave no answer: its process ended with status 7")
    assert outcomes[6] == Failure("error", "raised SystemExit: 3")


def test_a_hanging_item_costs_its_own_deadline_only_and_the_pool_heals(pool: Pool) -> None:
    run(pool, "fine", "fine")
    outcomes = run(pool, "spin", *["fine"] * 20, "sleep 60", "fine", seconds=1.0)
    assert outcomes[0] == outcomes[21] == Failure("timeout", "took longer than 1 s")
    assert outcomes[1:21] == [1.0] * 20
    assert outcomes[22] == 1.0
    assert run(pool, "fine") == [1.0]


def test_others_are_scored_while_items_hang(pool: Pool) -> None:
    run(pool, "fine", "fine")
    hanging = threading.Thread(target=run, args=(pool, "spin", "sleep 600"), kwargs={"seconds": 600.0})
    hanging.start()
    try:
        wait_for(lambda: pool._slow == 2, "both workers being slow")
        assert run(pool, *["fine"] * 10) == [1.0] * 10
        assert hanging.is_alive(), "the others did not wait for it"
    finally:
        pool.close()
        hanging.join()


def test_memory_is_limited(pool: Pool) -> None:
    (greedy,) = run(pool, f"eat {600 * 2**20}")
    assert greedy == Failure("error", "raised MemoryError: ")
    assert run(pool, "eat 1000") == [1000.0]


def test_the_time_to_start_counts_for_no_item(pool: Pool) -> None:
    assert run(pool, "fine", seconds=0.15) == [1.0]


def test_a_function_that_cannot_be_prepared_is_an_error_with_its_cause(pool: Pool) -> None:
    (outcome,) = pool.run("tests.reward.pooled:broken", {}, [ScoreItem(response="")], 5)
    assert outcome == Failure("error", "could not be prepared: raised LookupError: nothing to prepare")
    (outcome,) = pool.run("tests.reward.nowhere:at_all", {}, [ScoreItem(response="")], 5)
    assert isinstance(outcome, Failure) and "ModuleNotFoundError" in outcome.cause


@pytest.mark.parametrize("value", [2**70, "\ud800", object()])
def test_an_item_that_cannot_be_sent_is_invalid_and_spoils_no_other(pool: Pool, value: object) -> None:
    items = [ScoreItem(response="fine"), ScoreItem(response="tell", metadata={"value": value})] * 2
    outcomes = pool.run(OBEDIENT, {}, items, 20)
    assert outcomes[0] == outcomes[2] == 1.0
    for outcome in (outcomes[1], outcomes[3]):
        assert isinstance(outcome, Failure) and outcome.status == "invalid"


def test_large_items_and_printing_go_through(pool: Pool) -> None:
    assert run(pool, "fine " + "\u0000é🙂\u202e" * 500_000, "print \ud7ff") == [1.0, 1.0]
    assert run(pool, "tell", metadata={"value": 0.5, "nested": [{"a": None}]}) == [0.5]


def test_processes_have_no_secrets_and_no_network(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLSTREAM_REWARD_TOKEN", "a-secret-of-the-service")
    assert run(pool, "secret ROLLSTREAM_REWARD_TOKEN", "secret PATH") == [0.0, 1.0]
    probe = "import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare(0x50000000) != 0)"
    if subprocess.run([sys.executable, "-c", probe]).returncode:
        pytest.skip("this system lets no ordinary user have a network of their own")
    with socket.create_server(("127.0.0.1", 0)) as server:
        (outcome,) = run(pool, f"connect {server.getsockname()[1]}")
    assert isinstance(outcome, Failure) and "OSError" in outcome.cause


def test_many_threads_may_ask_at_once(pool: Pool) -> None:
    found: dict[int, list[Outcome]] = {}

    def ask(number: int) -> None:
        found[number] = run(pool, *["fine"] * 20, factor=number)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [float(number)] * 20 for number in range(8)}


def test_no_more_processes_than_allowed_and_none_after_the_close() -> None:
    pool = Pool(PoolConfig(workers=1, spare_workers=1, memory_mb=512))
    seen = set(run(pool, *["pid"] * 10))
    assert len(seen) == 1, "one worker is enough while nothing is slow"
    seen |= set(run(pool, "sleep 0.5", "pid", "sleep 0.5", "pid"))
    pool.close()
    assert not any(is_alive(pid) for pid in seen if isinstance(pid, float) and pid > 1)
    assert run(pool, "fine") == [Failure("error", "was asked of a service that is stopping")]


def test_a_close_while_items_hang_ends_at_once_with_errors(pool: Pool) -> None:
    outcomes: list[Outcome] = []
    asking = threading.Thread(target=lambda: outcomes.extend(run(pool, *["sleep 60"] * 9, seconds=60)))
    run(pool, "fine")
    asking.start()
    wait_for(lambda: pool._active == 4, "all four processes being slow")
    pool.close()
    asking.join()
    assert len(outcomes) == 9
    assert all(isinstance(outcome, Failure) and outcome.status == "error" for outcome in outcomes)


def test_the_death_of_the_nursery_is_survived(pool: Pool) -> None:
    (first,) = run(pool, "pid")
    assert isinstance(first, float)
    process = pool._nursery._process
    assert process
    process.kill()
    process.wait()
    wait_for(lambda: not is_alive(first), "the worker's death with it")
    outcomes = run(pool, "fine", "fine", "fine", "fine")
    assert outcomes[-1] == 1.0
    assert run(pool, "fine") == [1.0]


def test_idle_workers_that_die_with_the_nursery_cost_no_item() -> None:
    pool = Pool(PoolConfig(workers=4, spare_workers=4, memory_mb=512))
    try:
        run(pool, *["sleep 0.3"] * 4)
        pids = [pid for pid in run(pool, *["pid"] * 4) if isinstance(pid, float)]
        process = pool._nursery._process
        assert process
        process.kill()
        process.wait()
        wait_for(lambda: not any(is_alive(pid) for pid in pids), "the death of the idle workers")
        assert run(pool, *["fine"] * 32) == [1.0] * 32
    finally:
        pool.close()


@pytest.mark.parametrize("where", ["session", "group"])
def test_what_an_item_started_ends_with_it(pool: Pool, tmp_path: Path, where: str) -> None:
    told = tmp_path / "pid"
    (outcome,) = run(pool, f"start {where}", seconds=1.5, metadata={"file": str(told)})
    assert isinstance(outcome, Failure) and outcome.status == "timeout"
    wait_for(lambda: not is_alive(int(told.read_text())), "the end of the process that the item started")


def test_temporary_files_of_killed_processes_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    told = tmp_path / "pid"
    for way in ("item", "nursery"):
        pool = Pool(PoolConfig(workers=1, spare_workers=1, memory_mb=512))
        try:
            run(pool, "start group", seconds=1.5, metadata={"file": str(told)})
            wait_for(lambda: not list(tmp_path.glob("rollstream-pool-*/*/*")), "the killed item's folder")
            if way == "nursery" and pool._nursery._process:
                pool._nursery._process.kill()
        finally:
            pool.close()
    assert len(list(tmp_path.glob("rollstream-pool-*"))) == 1, "killed, it can remove nothing"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def next_one_is_alone() -> bool:
        with own_folder() as folder:
            return list(tmp_path.glob("rollstream-pool-*")) == [folder]

    wait_for(next_one_is_alone, "the last worker's end, after which the next nursery removes what is left")


@pytest.mark.parametrize("what", ["subprocess.Popen", "socket.socketpair"])
@pytest.mark.parametrize("error", [OSError(errno.ENOMEM, "no memory"), ValueError("of ours")])
def test_a_process_that_cannot_be_started_is_an_error_and_hangs_nobody(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, what: str, error: Exception
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(what, fail)
        for outcome in run(pool, "fine", "fine", "fine", "fine"):
            assert isinstance(outcome, Failure) and outcome.status == "error", outcome
            assert str(error) in outcome.cause
    assert run(pool, *["fine"] * 4) == [1.0] * 4, "when there is memory again"


def test_without_a_network_of_their_own_processes_are_told_of_or_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("services.reward.pool_process.receive", lambda channel, kind, until: 0)
    nursery = Nursery(512, network_required=True)
    with pytest.raises(Closed, match="network"):
        nursery.fork([])
    nursery.close()
    assert nursery.has_own_network is False
    assert "no network of their own" in caplog.text


def test_a_killed_service_leaves_no_process_behind() -> None:
    code = (
        "from services.reward.pool import *\n"
        "pool = Pool(PoolConfig(memory_mb=512))\n"
        "items = [ScoreItem(response='pid'), ScoreItem(response='spin')]\n"
        "import threading\n"
        "print(int(pool.run('tests.reward.pooled:obedient', {}, items[:1], 9)[0]), flush=True)\n"
        "pool.run('tests.reward.pooled:obedient', {}, items[1:], 600)\n"
    )
    service = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert service.stdout
        pid = int(service.stdout.readline())
        assert is_alive(pid)
        service.send_signal(signal.SIGKILL)
    finally:
        service.kill()
        service.communicate()
    wait_for(lambda: not is_alive(pid), "the end of the busy process")


def test_a_killed_process_is_replaced_by_one_that_was_ready(pool: Pool) -> None:
    run(pool, "fine", "fine")
    wait_for(lambda: len(pool._stock.pids) == 2, "two processes to be ready")
    ready = set(pool._stock.pids)
    outcomes = run(pool, "die", "die", "pid", "pid")
    assert ready.issuperset(outcomes[2:]), (ready, outcomes)
    wait_for(lambda: len(pool._stock.pids) == 2, "two others to be ready")
    assert not {*outcomes[2:]} & {*pool._stock.pids}, "those that took over"


def test_a_ready_process_that_died_is_given_to_no_item(pool: Pool) -> None:
    run(pool, "fine", "fine")
    wait_for(lambda: len(pool._stock.pids) == 2, "two processes to be ready")
    for pid in pool._stock.pids:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not any(process.is_alive() for process in pool._stock._ready), "the end of the killed")
    outcomes = run(pool, "die", "die", "fine", "fine")
    assert outcomes[2:] == [1.0, 1.0]


def test_idle_pools_have_no_processes() -> None:
    pool = Pool(PoolConfig())
    assert pool._nursery._process is None
    pool.close()
