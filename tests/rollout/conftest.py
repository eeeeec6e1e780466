"""The tiny models, one real service over the tied one for the whole session, and a room without vLLM."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import LlamaForCausalLM

from shared.stream import Streams, connect
from tests.conftest import RedisServer
from tests.rollout.asking import Asker
from tests.rollout.scripted import Room
from tests.rollout.server import RolloutServer
from tests.rollout.tiny_model import make_model, tensors_of

TiedModel = tuple[Path, LlamaForCausalLM]


@pytest.fixture(scope="session")
def tied_model(tmp_path_factory: pytest.TempPathFactory) -> TiedModel:
    folder = tmp_path_factory.mktemp("models") / "tied"
    return folder, make_model(folder, tied=True, ends=False)


@pytest.fixture(scope="session")
def server(
    redis_server: RedisServer, tied_model: TiedModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RolloutServer]:
    """A service whose completions all run to `max_tokens`, there being no stop token. It serves a version;
    tests push later ones as they like."""
    started = RolloutServer(
        tmp_path_factory.mktemp("server"),
        tied_model[0],
        redis_server.url,
        "rollout-tests",
        max_concurrent_groups=80,
    )
    try:
        with connect(redis_server.url) as client:
            started.wait(Streams(client, "rollout-tests"))
            started.push_next(tensors_of(tied_model[1]))
            yield started
    finally:
        started.stop()


@pytest.fixture
def asker(server: RolloutServer, redis_server: RedisServer) -> Iterator[Asker]:
    """Asks `server` through the streams."""
    with connect(redis_server.url) as client:
        yield Asker(Streams(client, "rollout-tests"))


@pytest.fixture
def room(streams: Streams, tied_model: TiedModel, tmp_path: Path) -> Iterator[Room]:
    made = Room(streams, tied_model, tmp_path)
    yield made
    made.weights.close()
