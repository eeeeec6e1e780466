"""The client files for other trainers, called as those trainers call them, against a live service."""

import asyncio
import importlib
import inspect
import math
import pickle
import sys
import types
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.clients.areal_reward import rollstream_reward_fn
from examples.clients.trl_reward import rollstream_reward
from examples.clients.verl_reward import compute_score
from shared.stream import Streams, connect
from tests.conftest import RedisServer, free_port
from tests.reward.conftest import Launcher
from tests.reward.groups import RIGHT, UNFINISHED, WRONG

CLIENTS = sorted((Path(__file__).parents[2] / "examples/clients").glob("*.py"))
TOKEN = "a-token-for-the-clients"


@pytest.fixture(scope="module")
def launch(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path_factory.mktemp("clients"), redis_server.url)
    yield launcher
    launcher.end()


@pytest.fixture(scope="module")
def url(launch: Launcher, redis_server: RedisServer) -> Iterator[str]:
    service = launch("clients", environment={"ROLLSTREAM_REWARD_TOKEN": TOKEN})
    with connect(redis_server.url) as connection:
        yield str(service.facts(Streams(connection, "clients"))["url"])
    assert service.stop() == 0


@pytest.fixture(autouse=True)
def environment(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLSTREAM_REWARD_URL", url)
    monkeypatch.setenv("ROLLSTREAM_REWARD_TOKEN", TOKEN)


@pytest.fixture
def rollstream_orm(monkeypatch: pytest.MonkeyPatch) -> type:
    """What `--external_plugins` registers, with ms-swift's base class and registry as in its
    `swift/rewards/orm.py` (commit 0431a5d)."""

    class ORM:
        def __init__(self, args: Any = None, **_: Any) -> None:
            self.args = args

    rewards = types.ModuleType("swift.rewards")
    rewards.ORM, rewards.orms = ORM, {}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "swift", types.ModuleType("swift"))
    monkeypatch.setitem(sys.modules, "swift.rewards", rewards)
    sys.modules.pop("examples.clients.ms_swift_plugin", None)
    importlib.import_module("examples.clients.ms_swift_plugin")
    registered: type = rewards.orms["rollstream"]  # type: ignore[attr-defined]
    assert issubclass(registered, ORM)
    return registered


def test_each_client_is_short_and_stands_alone() -> None:
    assert len(CLIENTS) == 4
    for path in CLIENTS:
        code = path.read_text()
        assert len(code.splitlines()) < 40, path
        assert "from examples" not in code and "from shared" not in code, path


def ask_trl(completions: list[Any], **columns: Any) -> list[Any]:
    """As GRPOTrainer does: all by keyword, with columns the function has not asked for."""
    return rollstream_reward(
        prompts=["9+9?"] * len(completions),
        completions=completions,
        completion_ids=[[1]] * len(completions),
        trainer_state=None,
        log_extra=print,
        log_metric=print,
        **columns,
    )


def test_trl_takes_texts_and_conversations() -> None:
    chats = [[{"role": "assistant", "content": text}] for text in (RIGHT, WRONG, UNFINISHED)]
    for completions in ([RIGHT, WRONG, UNFINISHED], chats):
        assert ask_trl(completions, ground_truth=["18"] * 3, other=[1, 2, 3]) == [10.0, 1.0, 0.0]
    assert ask_trl([RIGHT], ground_truth=[18]) == [10.0]


KNOWN = '''
def known(item, parameters):
    """How many messages an item has, else the level that its data set says."""
    return len(item.metadata["messages"]) if "messages" in item.metadata else item.metadata["level"][0]
'''


def test_messages_and_what_the_data_set_says_reach_the_scorers(
    launch: Launcher, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "known.py").write_text(KNOWN)
    table = f'{{ known = {{ kind = "plugin", path = "{tmp_path}/known.py", run_in = "service" }} }}'
    service = launch("clients-known", "--reward.scorers", table)
    with connect(redis_server.url) as connection:
        address = str(service.facts(Streams(connection, "clients-known"))["url"])
    monkeypatch.setenv("ROLLSTREAM_REWARD_URL", address)
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "9+9?"}]
    answer = [{"role": "assistant", "content": RIGHT}]
    assert rollstream_reward(prompts=[chat], completions=[answer]) == [2.0]
    assert compute_score("gsm8k", RIGHT, "18", extra_info={"level": np.array([3])}) == 3.0
    assert service.stop() == 0


def test_trl_gets_none_for_what_cannot_be_scored() -> None:
    rewards = ask_trl([RIGHT, "x" * 70000], ground_truth=["18", "18"])
    assert rewards == [10.0, None]
    # TRL puts NaN in place of None and sums without it.
    assert math.isnan([math.nan if reward is None else reward for reward in rewards][1])
    assert ask_trl([RIGHT]) == [None], "no ground truth"


def test_trl_may_send_it_to_another_process() -> None:
    assert pickle.loads(pickle.dumps(rollstream_reward)) is rollstream_reward  # noqa: S301


def ask_verl(solution: str, ground_truth: Any) -> Any:
    """As verl's reward manager does (`naive`): by keyword, with more keywords than documented."""
    return compute_score(
        data_source="openai/gsm8k",
        solution_str=solution,
        ground_truth=ground_truth,
        extra_info={"index": 1},
        reward_router_address=None,
        reward_model_tokenizer=None,
    )


def test_verl_gets_a_float_or_an_error() -> None:
    assert [ask_verl(text, "18") for text in (RIGHT, WRONG)] == [10.0, 1.0]
    assert isinstance(ask_verl(RIGHT, 18), float)
    with pytest.raises(RuntimeError, match=r"not scored: invalid: .* needs a ground_truth"):
        ask_verl(RIGHT, None)


def test_ms_swift_gets_floats_or_an_error(rollstream_orm: type) -> None:
    orm: Any = rollstream_orm(args=None)
    assert orm(completions=[RIGHT, WRONG], solution=["18", "18"], messages=[[], []]) == [10.0, 1.0]
    with pytest.raises(RuntimeError, match="2 of 2 not scored"):
        orm([RIGHT, WRONG])


async def ask_areal(**columns: Any) -> float | dict[str, float]:
    """`AsyncRewardWrapper.__call__` of AReaL (`areal/api/reward_api.py`, commit 1c17804), one attempt."""
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(max_workers=1) as executor:
        asked = partial(rollstream_reward_fn, "9+9?", f"{RIGHT}<|im_end|>", [1], [2], **columns)
        return await asyncio.wait_for(loop.run_in_executor(executor, asked), timeout=15)


def test_areal_gets_a_float_or_an_error_from_its_processes() -> None:
    assert asyncio.run(ask_areal(answer="#### 18", messages=[])) == 10.0
    with pytest.raises(RuntimeError, match="needs a ground_truth"):
        asyncio.run(ask_areal(messages=[]))


def test_signatures_are_those_of_the_frameworks() -> None:
    names = list(inspect.signature(compute_score).parameters)
    assert names[:4] == ["data_source", "solution_str", "ground_truth", "extra_info"]
    names = list(inspect.signature(rollstream_reward_fn).parameters)
    assert names[:4] == ["prompt", "completions", "prompt_ids", "completion_ids"]


@pytest.mark.parametrize("client", ["trl", "verl", "areal"])
def test_a_wrong_token_is_an_error_at_once(client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLSTREAM_REWARD_TOKEN", "wrong")
    with pytest.raises(RuntimeError, match=r"401.*token missing or wrong"):
        ask(client)


def ask(client: str) -> Any:
    if client == "trl":
        return ask_trl([RIGHT], ground_truth=["18"])
    if client == "verl":
        return ask_verl(RIGHT, "18")
    return rollstream_reward_fn("p", RIGHT, [1], [2], answer="18")


@pytest.mark.parametrize("module", ["trl_reward", "verl_reward"])
def test_a_service_that_is_away_is_waited_for_and_then_an_error(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    client = importlib.import_module(f"examples.clients.{module}")
    monkeypatch.setattr(client.time, "sleep", pauses.append)
    monkeypatch.setenv("ROLLSTREAM_REWARD_URL", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(RuntimeError, match="refused"):
        ask(module.removesuffix("_reward"))
    assert pauses == [1, 2, 4, 8]


def test_a_client_that_is_told_to_wait_comes_back(
    launch: Launcher, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = launch("slow-down", "--reward.max_requests_per_second", "1")
    with connect(redis_server.url) as connection:
        address = str(service.facts(Streams(connection, "slow-down"))["url"])
    monkeypatch.setenv("ROLLSTREAM_REWARD_URL", address)
    assert [ask_verl(RIGHT, "18") for _ in range(2)] == [10.0, 10.0]
    assert service.stop() == 0
