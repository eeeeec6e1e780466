"""A user's function as a scorer: found or refused at the start, run in the pool or in threads."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.reward.plugin.config import PluginConfig
from services.reward.pool import Pool, PoolConfig
from services.reward.protocol import Context, Failure, Outcome, Scorer
from shared.scoring import ScoreItem

CODE = '''
import time
from services.reward.protocol import Unscorable

def words(item, parameters):
    """The number of words."""
    if item.response == "raise":
        raise KeyError("oh")
    if item.response == "invalid":
        raise Unscorable("has no use for it")
    if item.response == "hang":
        time.sleep(1000)
    if item.response == "exit":
        raise SystemExit(0)
    return len(item.response.split()) * parameters.get("scale", 1)

async def trl_length(prompts, completions, **columns):
    return [float(len(completion)) for completion in completions]

number = 3
'''


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    pool = Pool(PoolConfig(workers=1))
    yield pool
    pool.close()


@pytest.fixture
def build(tmp_path: Path, pool: Pool) -> Iterator[Any]:
    path = tmp_path / "mine.py"
    path.write_text(CODE)
    built: list[Scorer] = []

    def make(name: str = "words", **settings: Any) -> Scorer:
        source = {} if "entry_point" in settings else {"path": path}
        built.append(PluginConfig.model_validate({**source, **settings}).build(name, Context(pool)))
        return built[-1]

    yield make
    for scorer in built:
        scorer.close()


def items(*responses: str) -> list[ScoreItem]:
    return [ScoreItem(response=response) for response in responses]


def status(outcome: Outcome) -> str:
    assert isinstance(outcome, Failure), outcome
    return outcome.status


@pytest.mark.parametrize("run_in", ["pool", "service"])
def test_each_item_has_its_own_outcome(build: Any, run_in: str) -> None:
    scorer = build(run_in=run_in, parameters={"scale": 2})
    outcomes = scorer.score(items("a b", "raise", "invalid", "exit", "a b c"), 10.0)
    assert (outcomes[0], outcomes[4]) == (4.0, 6.0)
    assert [status(outcome) for outcome in outcomes[1:4]] == ["error", "invalid", "error"]
    assert "raised KeyError: 'oh'" in outcomes[1].cause and scorer.description == "The number of words."


@pytest.mark.parametrize("run_in", ["pool", "service"])
def test_an_item_that_hangs_costs_its_own_deadline(build: Any, run_in: str) -> None:
    scorer = build(run_in=run_in, threads=2)
    scorer.score(items("warm"), 20.0)
    start = time.monotonic()
    first, hanging, last = scorer.score(items("a", "hang", "a b"), 0.5)
    assert (first, last, status(hanging)) == (1.0, 2.0, "timeout")
    assert time.monotonic() - start < 10


def test_when_all_threads_hang_items_fail_instead_of_waiting_for_ever(build: Any) -> None:
    scorer = build(run_in="service", threads=1)
    outcomes = scorer.score(items("hang", "a"), 0.2)
    assert [status(outcome) for outcome in outcomes] == ["timeout", "timeout"]
    assert "all 1 threads hanging" in outcomes[1].cause


def test_an_async_function_of_trl_runs_in_the_pool(build: Any) -> None:
    scorer = build(function="trl_length", signature="trl", conversational=False)
    assert scorer.score(items("abc", "abcd"), 20.0) == [3.0, 4.0]


def test_an_entry_point_names_a_function_of_an_installed_package(build: Any) -> None:
    scorer = build(entry_point="html:escape", signature="areal", run_in="service")
    assert status(scorer.score(items("a"), 5.0)[0]) == "error", (
        "it is not a reward function, but it was found"
    )


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({"function": "word"}, "has no function 'word'; it has .*words"),
        ({"function": "number"}, "is a int, not a function"),
        ({"path": "/nowhere/mine.py"}, "there is no file"),
        ({"entry_point": "nobodys"}, "no installed package has an entry point 'nobodys'"),
        ({"entry_point": "nowhere.at_all:f"}, "cannot be loaded: ModuleNotFoundError"),
    ],
)
def test_what_is_not_there_ends_the_start(build: Any, settings: dict[str, Any], cause: str) -> None:
    with pytest.raises(ValueError, match=cause):
        build(**settings)


def test_a_file_that_fails_ends_the_start(build: Any, tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("1/0")
    with pytest.raises(ValueError, match="cannot be loaded: ZeroDivisionError"):
        build(path=broken)


@pytest.mark.parametrize(
    "settings", [{}, {"path": "a.py", "entry_point": "b"}, {"entry_point": "b", "function": "f"}]
)
def test_a_function_comes_from_one_place(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="entry_point"):
        PluginConfig.model_validate(settings)
