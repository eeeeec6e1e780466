"""What a live rollout server shows Prometheus."""

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.rollout.asking import Asker, make_prompt, some_tokens
from tests.rollout.server import RolloutServer, wait_until

OPERATIONS = Path(__file__).parents[2] / "docs/operations.md"


def samples(server: RolloutServer) -> dict[str, float]:
    """Values by name and labels' values."""
    page = server.client.get("/metrics")
    assert page.headers["content-type"].startswith("text/plain; version=")
    families = text_string_to_metric_families(page.text)
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in families
        for sample in family.samples
    }


def test_a_live_server_has_every_metric_of_the_table_and_no_other(
    server: RolloutServer, asker: Asker
) -> None:
    asker.answers([make_prompt(some_tokens(10, 1), n=2, max_tokens=8)])
    page = server.client.get("/metrics").text
    shown = {f.name for f in text_string_to_metric_families(page) if f.name.startswith("rollstream_")}
    documented = set(re.findall(r"`(rollstream_rollout_\w+)`", OPERATIONS.read_text()))
    assert shown == documented


def test_what_a_server_does_is_counted(server: RolloutServer, asker: Asker) -> None:
    before = samples(server)
    good = [make_prompt(some_tokens(10, i), n=2, max_tokens=8) for i in range(3)]
    asker.issue([make_prompt(some_tokens(600, 1))])
    asker.answers(good)

    def grown(name: str) -> float:
        return samples(server)[name] - before[name]

    wait_until(lambda: grown("rollstream_rollout_dead_letters_total refused") == 1)
    wait_until(lambda: grown("rollstream_rollout_groups_total delivered") == 3)
    assert grown("rollstream_rollout_groups_total dead") == 1
    assert grown("rollstream_rollout_tokens_generated_total") == 3 * 2 * 8
    assert grown("rollstream_rollout_generate_seconds_count") >= 3
    now = samples(server)
    assert now["rollstream_rollout_policy_version"] == server.status.version
    assert now["rollstream_rollout_weight_bytes_total"] > 0
    assert now["rollstream_rollout_weight_update_seconds_count apply"] >= 1
    assert now["rollstream_rollout_queue_length rollouts"] == len(asker.groups())


def test_the_page_asks_for_the_token(server: RolloutServer) -> None:
    assert server.client.get("/metrics", headers={"Authorization": "Bearer wrong"}).status_code == 401
