"""`/metrics` of a live service, read with Prometheus' own parser."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from shared.stream import Streams
from tests.reward.conftest import Launcher, wait_for
from tests.reward.groups import RIGHT, add, deliver, make_group

TABLE = Path(__file__).parents[2] / "docs/rest.md"


@pytest.fixture
def client(launch: Launcher, streams: Streams) -> Iterator[httpx.Client]:
    service = launch(streams.run)
    with httpx.Client(base_url=str(service.facts(streams)["url"])) as client:
        yield client
    assert service.stop() == 0


def samples(client: httpx.Client) -> dict[tuple[str, ...], float]:
    """Values by name and label values."""
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_a_live_service_has_every_metric_of_the_table_and_no_other(client: httpx.Client) -> None:
    shown = {family.name for family in text_string_to_metric_families(client.get("/metrics").text)}
    documented = re.findall(r"^\| `(rollstream_reward_\w+)`", TABLE.read_text(), re.MULTILINE)
    assert shown == {name.removesuffix("_total") for name in documented}


def test_requests_items_seconds_and_queues_are_counted(client: httpx.Client, streams: Streams) -> None:
    started = time.monotonic()
    items = [{"response": RIGHT, "ground_truth": "18"}, {"response": RIGHT}]
    for _ in range(3):
        client.post("/v1/score", json={"items": items})
    client.post("/v1/score", json={"items": 5})
    client.get("/secret-path-of-a-scanner")
    streams.client.xadd(streams.key("dead"), {"id": "x"})
    seen = samples(client)
    requests, all_items = "rollstream_reward_requests_total", "rollstream_reward_items_total"
    assert seen[requests, "/v1/score", "200"] == 3
    assert seen[requests, "/v1/score", "422"] == 1
    assert seen[requests, "none", "404"] == 1
    assert seen[all_items, "ok"] == seen[all_items, "invalid"] == 3
    assert seen["rollstream_reward_request_seconds_count", "/v1/score"] == 4
    assert 0 < seen["rollstream_reward_request_seconds_sum", "/v1/score"] < time.monotonic() - started
    assert seen["rollstream_reward_scorer_seconds_count", "gsm8k_reward_fn"] == 3
    assert seen["rollstream_reward_queue_length", "dead"] == 1
    assert seen["rollstream_reward_queue_length", "rollouts"] == 0
    assert seen["rollstream_reward_queue_pending", "rollouts"] == 0
    assert seen[("rollstream_reward_requests_waiting",)] == 0
    assert not [key for key in seen if any("scanner" in part for part in key)]


def test_dead_letters_are_counted_by_the_kind_of_their_cause(client: httpx.Client, streams: Streams) -> None:
    add(streams, "poison", b"no group")
    deliver(streams, make_group("a", [RIGHT], ground_truth=None), make_group("b", [""], ground_truth=None))
    counted = {"malformed": 1, "refused": 2, "failed": 0, "timeout": 0}

    def seen() -> dict[str, float]:
        found = samples(client)
        return {kind: found["rollstream_reward_dead_letters_total", kind] for kind in counted}

    wait_for(lambda: seen() == counted, "the counts")


def test_a_queue_that_cannot_be_asked_is_not_shown_as_empty(client: httpx.Client, streams: Streams) -> None:
    streams.client.delete(streams.key("dead"))
    streams.client.set(streams.key("dead"), "no stream")
    wait_for(lambda: not [key for key in samples(client) if "queue_length" in key[0]], "no lengths")
    streams.client.delete(streams.key("dead"))
    assert samples(client)["rollstream_reward_queue_length", "dead"] == 0
