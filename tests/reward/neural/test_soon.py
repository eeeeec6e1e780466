"""A neural scorer that is awaited: the same outcomes, and no thread for each request."""

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.reward.neural.scorer import NeuralScorer
from services.reward.protocol import Failure, Outcome
from shared.scoring import ScoreItem
from shared.stream import Streams
from tests.reward.inside import application, ask
from tests.reward.neural.models import MIXED, scorer, texts, write_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("rm"), "sequence_classification")


@pytest.fixture
def rm(folder: Path) -> Iterator[NeuralScorer]:
    rm = scorer(folder)
    yield rm
    rm.close()


def awaited(rm: NeuralScorer, items: list[ScoreItem], deadline_seconds: float = 60.0) -> list[Outcome]:
    """The outcomes, from a loop that has nothing to complain of."""

    async def run() -> list[Outcome]:
        complaints: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        outcomes = await rm.score_soon(items, deadline_seconds)
        assert not complaints
        return outcomes

    return asyncio.run(run())


def test_awaited_outcomes_are_the_same(rm: NeuralScorer) -> None:
    items = [*MIXED, ScoreItem(response="x" * 1000)]
    got, expected = awaited(rm, items), rm.score(items, 60.0)
    assert isinstance(got[-1], Failure) and got[-1] == expected[-1]
    assert got[:-1] == pytest.approx(expected[:-1], abs=1e-5)


def test_a_model_that_hangs_or_fails_is_told_of(rm: NeuralScorer) -> None:
    release = threading.Event()

    def wait_and_fail(*_: Any) -> None:
        assert release.wait(20)
        raise RuntimeError("the model broke")

    hook = rm._engine.model.base_model.register_forward_pre_hook(wait_and_fail)
    try:
        (late,) = awaited(rm, texts("a"), 0.2)
        release.set()
        (failed,) = awaited(rm, texts("a"))
    finally:
        release.set()
        hook.remove()
    assert isinstance(late, Failure) and late.status == "timeout"
    assert failed == Failure("error", "raised RuntimeError: the model broke")


def test_many_requests_share_batches_without_a_thread_for_each(folder: Path, streams: Streams) -> None:
    table = {"kind": "neural", "path": str(folder), "device": "cpu", "prompt_as": "text"}
    responses = ["x" * number for number in range(64)]
    bodies = [json.dumps({"items": [{"prompt": "Q: ", "response": r}]}).encode() for r in responses]
    before = set(threading.enumerate())
    with application(streams, scorers={"rm": table}) as app:

        async def run() -> list[float]:
            answers = await asyncio.gather(*(ask(app, "/v1/score", body) for body in bodies))
            assert {answer.status for answer in answers} == {200}
            return [answer.json()["results"][0]["reward"] for answer in answers]

        rewards = asyncio.run(run())
        started = set(threading.enumerate()) - before
        assert not [thread for thread in started if thread.name.startswith("door")]
    rm = scorer(folder)
    try:
        assert rewards == pytest.approx(rm.score(texts(*responses), 60.0), abs=1e-5)
    finally:
        rm.close()
