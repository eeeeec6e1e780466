"""One live service for all contracts, and one whose scorer needs no ground truth."""

from collections.abc import Iterator

import pytest

from shared.stream import Streams, connect
from tests.conftest import RedisServer
from tests.reward.conftest import Launcher, Service

LENGTH = """
from services.reward.rules.table import RULES, Row
def length(item, config):
    \"\"\"The number of characters.\"\"\"
    return float(len(item.response))
def prompt_length(item, config):
    \"\"\"The number of characters before the response.\"\"\"
    return float(len(item.prompt))
def odd(item, config):
    \"\"\"Fails where it is told to.\"\"\"
    if "fail" in item.response or item.metadata.get("fail") or "rollstream" in item.metadata:
        raise RuntimeError("judge is away")
    return 1.0
for rule in (length, prompt_length, odd):
    RULES[rule.__name__] = Row(rule)
from services.reward.__main__ import main
main()
"""


def url_of(service: Service, run: str, redis_server: RedisServer) -> str:
    with connect(redis_server.url) as connection:
        return str(service.facts(Streams(connection, run))["url"])


@pytest.fixture(scope="session")
def gsm8k(launch: Launcher, redis_server: RedisServer) -> Iterator[str]:
    """URL of a service with `gsm8k_reward_fn`."""
    service = launch("compat-gsm8k", "--reward.max_response_characters", "2000")
    yield url_of(service, "compat-gsm8k", redis_server)
    assert service.stop() == 0
    assert "Traceback" not in service.stderr()


@pytest.fixture(scope="session")
def textual(launch: Launcher, redis_server: RedisServer) -> Iterator[str]:
    """URL of a service whose reward is the response's length; text with `fail` fails."""
    scorers = "{ length = 1.0, odd = 0.0, prompt_length = 0.0 }"
    service = launch("compat-textual", "--reward.scorers", scorers, code=LENGTH)
    yield url_of(service, "compat-textual", redis_server)
    assert service.stop() == 0
    assert "Traceback" not in service.stderr()
