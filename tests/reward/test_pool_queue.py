"""The pool's queue, whose item is next; and what an item may not use up."""

import threading

from services.reward.pool import Pool, PoolConfig
from services.reward.pool_child import FILE_BYTES
from services.reward.protocol import Failure
from tests.reward.conftest import wait_for
from tests.reward.test_pool import run


def test_a_long_batch_does_not_hold_up_another_callers_item() -> None:
    pool = Pool(PoolConfig(workers=1, spare_workers=0, memory_mb=512))
    waiting = threading.Thread(target=run, args=(pool, *["sleep 0.3"] * 60))
    try:
        run(pool, "fine")
        waiting.start()
        wait_for(lambda: bool(pool._queue), "the long batch")
        assert run(pool, "fine") == [1.0]
        assert len(pool._queue[0].untaken) > 50, "it had its turn after one of theirs"
    finally:
        pool.close()
        waiting.join()


def test_a_file_may_not_fill_the_disk() -> None:
    pool = Pool(PoolConfig(workers=1, spare_workers=0, memory_mb=512))
    try:
        small, large, after = run(pool, "grow 1000", f"grow {FILE_BYTES + 1}", "fine")
    finally:
        pool.close()
    assert small == after == 1.0
    assert isinstance(large, Failure) and "File too large" in large.cause
