"""The time that all items of one request have together, whatever scores them."""

import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from services.reward.pool import Pool, PoolConfig
from services.reward.protocol import OVERDUE
from shared.scoring import ScoreItem
from shared.stream import Streams
from tests.reward.external.servers import Reply, items, scorer_of, serving
from tests.reward.inside import application, ask
from tests.reward.neural.models import scorer, texts, write_model
from tests.reward.test_pool import OBEDIENT

SLEEP = """
import time
def sleep(item, parameters):
    time.sleep(float(item.response))
    return 1.0
"""


def test_in_the_pool_items_that_wait_and_items_at_work_are_given_up() -> None:
    pool = Pool(PoolConfig(workers=1, spare_workers=0, memory_mb=512))
    commands = [ScoreItem(response=text) for text in ("fine", "sleep 60", *["sleep 0.2"] * 50)]
    try:
        pool.run(OBEDIENT, {}, commands[:1], 20)
        outcomes = pool.run(OBEDIENT, {}, commands, 60, until=time.monotonic() + 1)
    finally:
        pool.close()
    assert outcomes == [1.0, *[OVERDUE] * 51]


@pytest.mark.parametrize("run_in", ["pool", "service"])
def test_a_request_is_answered_in_its_time(streams: Streams, tmp_path: Path, run_in: str) -> None:
    (tmp_path / "sleep.py").write_text(SLEEP)
    table: dict[str, Any] = {"kind": "plugin", "path": f"{tmp_path}/sleep.py", "run_in": run_in, "threads": 2}
    body = json.dumps({"items": [{"response": text} for text in ("0", "5", "5", "5", "5")]}).encode()
    scorers = {"sleep": table | {"deadline_seconds": 30}}
    with application(streams, scorers=scorers, request_seconds=2.0) as app:
        results = asyncio.run(ask(app, "/v1/score", body)).json()["results"]
    assert [result["status"] for result in results] == ["ok", *["timeout"] * 4]
    assert "before the time for the whole request was over" in results[-1]["error"]


def test_a_server_is_waited_for_no_longer() -> None:
    release = threading.Event()

    def late(_: Any) -> Reply:
        release.wait(20)
        return Reply({"scores": [1.0]})

    with serving(late) as server, scorer_of(server.url, contract="llamafactory", batch_size=1) as outside:
        try:
            outcomes = outside.score(items("a", "b"), 60.0, time.monotonic() + 0.3)
        finally:
            release.set()
    assert outcomes == [OVERDUE, OVERDUE]


def test_a_model_is_waited_for_no_longer(tmp_path: Path) -> None:
    rm = scorer(write_model(tmp_path, "sequence_classification"))
    release = threading.Event()
    hook = rm._engine.model.base_model.register_forward_pre_hook(lambda *_: release.wait(20) and None)
    try:
        for score in (rm.score, lambda *asked: asyncio.run(rm.score_soon(*asked))):
            assert score(texts("a", "b"), 60.0, time.monotonic() + 0.3) == [OVERDUE, OVERDUE]
    finally:
        hook.remove()
        release.set()
        rm.close()
