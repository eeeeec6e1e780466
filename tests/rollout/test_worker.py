"""The stream worker against a real engine: admission, versions, bad entries, death."""

from pathlib import Path

import msgspec
from transformers import LlamaForCausalLM

from shared.codec import encode
from shared.stream import Streams, connect
from shared.workers import list_workers
from tests.conftest import RedisServer
from tests.rollout.asking import Asker, logprob_gap, make_prompt, some_tokens
from tests.rollout.server import RolloutServer, wait_until
from tests.rollout.tiny_model import tensors_of, varied


def test_nothing_is_admitted_before_a_version_and_a_killed_worker_loses_nothing(
    server: RolloutServer,
    asker: Asker,
    redis_server: RedisServer,
    tied_model: tuple[Path, LlamaForCausalLM],
    tmp_path: Path,
) -> None:
    folder, model = tied_model
    second = RolloutServer(tmp_path / "second", folder, redis_server.url, asker.streams.run,
                           max_concurrent_groups=100)  # fmt: skip
    try:
        second.wait(asker.streams)
        assert second.client.get("/ready").status_code == 503
        assert second.client.get("/health").status_code == 200
        refused = second.client.post("/v1/completions", json={"model": "tied", "prompt": "x"})
        assert refused.status_code == 503 and "push a version" in refused.text
        asker.answers([make_prompt(some_tokens(10, i)) for i in range(20)])
        consumers = asker.streams.client.xinfo_consumers(asker.streams.key("prompts"), "rollout")
        assert second.id not in {consumer["name"].decode() for consumer in consumers}

        second.push(tensors_of(model), server.next_version)
        assert second.client.get("/ready").status_code == 200
        prompts = [make_prompt(some_tokens(10, i), n=2, max_tokens=150) for i in range(100)]
        asker.issue(prompts)
        wait_until(lambda: asker.streams.pending("prompts", second.id))
        second.process.kill()
        second.process.wait()
        assert asker.streams.pending("prompts", second.id)
        groups = asker.collect(prompts, seconds=90)
        assert {group.prompt.id for group in groups} == {prompt.id for prompt in prompts}
        assert all(len(group.completions) == 2 for group in groups)
        assert not asker.streams.pending("prompts", second.id)
    finally:
        second.stop()


def test_a_prompt_waits_for_the_version_it_was_issued_at(
    server: RolloutServer, asker: Asker, tied_model: tuple[Path, LlamaForCausalLM]
) -> None:
    version = server.next_version - 1
    early = make_prompt(some_tokens(20, 1), issued_version=version + 1)
    asker.issue([early])
    wait_until(lambda: server.client.get("/v1/status").json()["groups_in_flight"] == 1)
    asker.answers([make_prompt(some_tokens(20, i), issued_version=version) for i in range(10)])
    assert not asker.answered([early])
    current = varied(tied_model[1], seed=400)
    server.push_next(tensors_of(current))
    (group,) = asker.collect([early])
    assert group.min_version == group.max_version == version + 1
    assert logprob_gap(group, {version + 1: current}) < 1e-4


def test_bad_entries_are_dead_lettered_with_their_cause_and_do_not_stop_the_others(
    server: RolloutServer, asker: Asker
) -> None:
    streams = asker.streams
    unknown = msgspec.structs.replace(make_prompt([5]), schema=99)
    too_long = make_prompt(some_tokens(600, 1))
    strange = make_prompt([5, 10_000])
    impossible = make_prompt([5], temperature=-1.0)
    expected = {
        unknown.id: "schema 99",
        too_long.id: "512",
        strange.id: "10000",
        impossible.id: "temperature",
        "garbage": "decoded",
    }
    asker.issue([unknown, too_long, strange, impossible])
    streams.client.xadd(streams.key("prompts"), {"id": "garbage", "payload": b"\xc1garbage"})
    asker.answers([make_prompt(some_tokens(10, 1))])

    def causes() -> dict[str, str]:
        return {entry.id: entry.fields["cause"] for entry in streams.after("dead", "0")}

    wait_until(lambda: expected.keys() <= causes().keys())
    for id, part in expected.items():
        assert part in causes()[id], causes()[id]
    assert all(entry.fields["stage"] == "rollout" for entry in streams.after("dead", "0"))
    (kept,) = [entry for entry in streams.after("dead", "0") if entry.id == too_long.id]
    assert kept.payload == encode(too_long), "the entry as it was"
    assert not streams.pending("prompts", server.id)


def test_the_heartbeat_and_the_status_tell_what_is_served(
    server: RolloutServer, redis_server: RedisServer
) -> None:
    status = server.client.get("/v1/status").json()
    weights = server.status
    assert (status["version"], status["digest"]) == (weights.version, weights.digest)
    with connect(redis_server.url) as client:
        streams = Streams(client, "rollout-tests")

        def beat() -> dict[str, object]:
            (facts,) = [w for w in list_workers(streams, "rollout") if w["id"] == server.id]
            return dict(facts)

        wait_until(lambda: beat()["version"] == weights.version)
        assert beat()["learner_epoch"] == weights.learner_epoch == server.epoch
        assert beat()["url"] == server.url and beat()["service"] == "rollout"
        assert int(str(beat()["tokens_generated"])) > 0
