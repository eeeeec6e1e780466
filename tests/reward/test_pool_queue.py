"""The pool's queue: whose item is next, and what becomes of those that nobody can wait for."""

import threading

from services.reward.pool import Pool, PoolConfig
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
