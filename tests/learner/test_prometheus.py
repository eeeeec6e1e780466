"""What the learner shows Prometheus."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from services.learner import coordinator
from services.learner.config.learner import LearnerSettings
from services.learner.coordinator import Coordinator
from services.learner.data.chat_template import load_chat_template
from services.learner.metrics_server import MetricsServer
from services.learner.prometheus import LearnerMetrics
from shared.stream import Streams
from tests.conftest import RedisServer
from tests.learner.samples import make_groups, save_tiny_llama

TOKEN = "the-token-of-this-run"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def server(metrics: LearnerMetrics) -> Iterator[MetricsServer]:
    made = MetricsServer("127.0.0.1", 0, TOKEN, metrics.registry)
    yield made
    made.close()


def samples(server: MetricsServer) -> dict[str, float]:
    page = httpx.get(server.url, headers=BEARER).text
    families = text_string_to_metric_families(page)
    return {
        sample.name + "".join(f" {value}" for value in sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def test_only_who_has_the_token_sees_the_page(server: MetricsServer) -> None:
    assert httpx.get(server.url).status_code == 401
    assert httpx.get(server.url, headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert httpx.get(server.url.replace("metrics", "other"), headers=BEARER).status_code == 404
    assert httpx.get(server.url, headers=BEARER).status_code == 200


def test_a_port_in_use_is_refused_with_the_remedy(server: MetricsServer, metrics: LearnerMetrics) -> None:
    port = int(server.url.split(":")[2].split("/")[0])
    with pytest.raises(ValueError, match="metrics_port"):
        MetricsServer("127.0.0.1", port, TOKEN, metrics.registry)


def test_a_learner_without_its_port_leaves_the_running_one_alone(
    server: MetricsServer,
    redis_server: RedisServer,
    streams: Streams,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ROLLSTREAM_TOKEN", TOKEN)
    monkeypatch.setattr(coordinator, "load_datasets", lambda *_: ([], []))  # they are not what is tried
    port = int(server.url.split(":")[2].split("/")[0])
    settings = LearnerSettings.model_validate(
        {
            "run": {"name": streams.run, "dir": tmp_path},
            "model": {"path": save_tiny_llama(tmp_path / "model")},
            "redis": {"url": redis_server.url},
            "learner": {"prompts": str(tmp_path / "prompts.jsonl"), "metrics_port": port},
        }
    )
    running = streams.next_learner_epoch()
    with pytest.raises(ValueError, match="metrics_port"):
        Coordinator.open(settings, None, load_chat_template(None))  # type: ignore[arg-type]
    assert streams.client.get(streams.key("learner_epoch")) == str(running).encode()


def test_tokens_are_counted_by_how_old_their_policy_was(
    server: MetricsServer, metrics: LearnerMetrics
) -> None:
    groups = make_groups(2, 2)
    oldest = min(group.min_version for group in groups)
    tokens = sum(group.tokens for group in groups)
    metrics.count_step(oldest + 3, groups, seconds=2.0, waited=1.0)
    seen = samples(server)
    ages = Counter(
        {oldest + 2 - span.version: 0 for g in groups for c in g.completions for span in c.version_spans}
    )
    for group in groups:
        for completion in group.completions:
            for span in completion.version_spans:
                ages[oldest + 2 - span.version] += span.tokens
    assert seen["rollstream_learner_token_staleness_bucket +Inf"] == tokens == sum(ages.values())
    assert seen["rollstream_learner_token_staleness_bucket 1.0"] == sum(n for a, n in ages.items() if a <= 1)
    assert seen["rollstream_learner_token_staleness_sum"] == sum(a * n for a, n in ages.items())
    assert seen["rollstream_learner_tokens_trained_total"] == tokens
    assert seen["rollstream_learner_step"] == oldest + 3
    assert (seen["rollstream_learner_step_seconds_sum"], seen["rollstream_learner_wait_seconds_sum"]) == (
        2,
        1,
    )


def test_the_feeds_counts_are_shown_as_they_are_at_each_scrape(
    server: MetricsServer, metrics: LearnerMetrics
) -> None:
    counts = Counter({"issued": 5, "trained": 2})
    deaths: Counter[tuple[str, str]] = Counter()
    metrics.show_feed(counts, deaths, in_flight=lambda: counts["issued"] - counts["trained"], credits=8)
    assert samples(server)["rollstream_learner_groups_in_flight"] == 3
    counts.update({"trained": 2, "duplicates": 1})
    deaths.update({("reward", "timeout"): 1, ("reward", "free text"): 2, ("", "failed"): 3})
    seen = samples(server)
    assert seen["rollstream_learner_groups_issued_total"] == 5
    assert seen["rollstream_learner_groups_trained_total"] == 4
    assert seen["rollstream_learner_groups_in_flight"] == 1
    assert seen["rollstream_learner_credits"] == 8
    assert seen["rollstream_learner_duplicates_prevented_total"] == 1
    dead = {name: value for name, value in seen.items() if "dead_letters" in name}
    assert dead == {
        "rollstream_learner_dead_letters_total timeout reward": 1,
        "rollstream_learner_dead_letters_total other reward": 2,
        "rollstream_learner_dead_letters_total failed other": 3,
    }
