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


def test_vllms_own_metrics_are_on_the_page(server: RolloutServer, asker: Asker) -> None:
    def generated() -> float:
        return sum(
            v for name, v in samples(server).items() if name.startswith("vllm:generation_tokens_total")
        )

    before = generated()
    asker.answers([make_prompt(some_tokens(10, 1), n=2, max_tokens=8)])
    wait_until(lambda: generated() == before + 16)
    now = samples(server)
    assert any(name.startswith("vllm:kv_cache_usage_perc") for name in now)
    assert now["process_resident_memory_bytes"] > 0


def test_the_engines_load_is_shown_while_it_works(server: RolloutServer, asker: Asker) -> None:
    prompts = [make_prompt(some_tokens(10, i), n=2, max_tokens=300) for i in range(4)]
    asker.issue(prompts)
    wait_until(lambda: samples(server)["rollstream_rollout_engine_running_requests"] == 8)
    assert 0 < samples(server)["rollstream_rollout_engine_kv_cache_use"] < 1
    assert samples(server)["rollstream_rollout_groups_limit"] >= 4
    asker.collect(prompts)


def test_the_page_asks_for_the_token(server: RolloutServer) -> None:
    assert server.client.get("/metrics", headers={"Authorization": "Bearer wrong"}).status_code == 401
