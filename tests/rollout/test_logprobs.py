"""The engine serves exactly the weights it was pushed: its logprobs against those of transformers."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from transformers import LlamaForCausalLM

from shared.experience import Group, Prompt
from shared.stream import Streams, connect
from tests.conftest import RedisServer
from tests.rollout.asking import Asker, logprob_gap, make_prompt, some_tokens
from tests.rollout.server import RolloutServer, make_update, wait_until
from tests.rollout.tiny_model import make_model, tensors_of, varied

EOS = 2
MAX_GAP = 1e-4
SHORT, LONG = 5, 75
"""Prompt lengths, shorter and longer than two cache blocks of 32."""


@pytest.fixture(scope="module")
def untied(
    redis_server: RedisServer, server: RolloutServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RolloutServer, Asker, LlamaForCausalLM]]:
    folder: Path = tmp_path_factory.mktemp("untied")
    model = make_model(folder / "model", tied=False)
    started = RolloutServer(
        folder, folder / "model", redis_server.url, "rollout-untied", kv_cache_at_update="keep"
    )
    try:
        with connect(redis_server.url) as client:
            asker = Asker(Streams(client, "rollout-untied"))
            yield started.wait(asker.streams), asker, model
    finally:
        started.stop()


def check_several_updates(server: RolloutServer, asker: Asker, model: LlamaForCausalLM) -> None:
    """Push versions; after each, prompts old and new, short and long, must show it in every logprob."""
    for update in range(3):
        current = varied(model, seed=100 + update)
        version = server.push_next(tensors_of(current))
        for length in (SHORT, LONG):
            # The same tokens under every version: what the prefix cache remembers would be wrong.
            prompts = [
                make_prompt(some_tokens(length, 1), n=3),
                make_prompt(some_tokens(length, 2), top_k=20),
            ]
            prompts += [make_prompt(some_tokens(length, 1), temperature=0.7)]
            for group in asker.answers(prompts):
                assert logprob_gap(group, {version: current}) < MAX_GAP
                assert group.min_version == group.max_version == version
                assert group.weights_digest == server.status.digest


def test_logprobs_are_those_of_the_pushed_weights_with_a_tied_head(
    server: RolloutServer, asker: Asker, tied_model: tuple[Path, LlamaForCausalLM]
) -> None:
    check_several_updates(server, asker, tied_model[1])


def test_logprobs_are_those_of_the_pushed_weights_with_a_head_of_its_own(
    untied: tuple[RolloutServer, Asker, LlamaForCausalLM],
) -> None:
    check_several_updates(*untied)


def test_a_tied_head_may_be_named_in_the_update(
    server: RolloutServer, asker: Asker, tied_model: tuple[Path, LlamaForCausalLM]
) -> None:
    current = varied(tied_model[1], seed=7)
    embedding = current.state_dict()["model.embed_tokens.weight"]
    version = server.push_next({**tensors_of(current), "lm_head.weight": embedding.clone()})
    (group,) = asker.answers([make_prompt(some_tokens(LONG, 3), n=2)])
    assert logprob_gap(group, {version: current}) < MAX_GAP


def test_an_update_keeps_all_requests_in_flight_and_each_token_names_its_version(
    server: RolloutServer, asker: Asker, tied_model: tuple[Path, LlamaForCausalLM]
) -> None:
    before, after = varied(tied_model[1], seed=200), varied(tied_model[1], seed=201)
    version = server.push_next(tensors_of(before))
    manifest, payloads = make_update(tensors_of(after), version + 1, server.epoch)
    base = f"/v1/weights/{version + 1}"
    assert server.client.post(base, content=manifest.model_dump_json()).status_code == 201
    for part, payload in enumerate(payloads):
        assert server.client.put(f"{base}/parts/{part}", content=payload).status_code == 204
    prompts = [make_prompt(some_tokens(LONG if i % 2 else SHORT, i), max_tokens=200) for i in range(64)]
    asker.issue(prompts)
    wait_until(lambda: in_flight(server) >= 32)
    assert server.client.post(f"{base}/commit").status_code == 200
    groups = asker.collect(prompts)
    models = {version: before, version + 1: after}
    spans = [[span.version for span in group.completions[0].version_spans] for group in groups]
    # Fewer than were in flight: some had no token yet when the update came.
    assert sum(versions == [version, version + 1] for versions in spans) >= 8
    assert all(len(group.completions[0].token_ids) == 200 for group in groups)
    assert max(logprob_gap(group, models) for group in groups) < MAX_GAP


def in_flight(server: RolloutServer) -> int:
    return int(server.client.get("/v1/status").json()["groups_in_flight"])


def outlive_updates(
    server: RolloutServer, asker: Asker, model: LlamaForCausalLM, prompts: Sequence[Prompt], updates: int
) -> tuple[list[Group], dict[int, LlamaForCausalLM]]:
    """The groups of long completions that so many updates found in flight, and the models of all versions."""
    models = {server.push_next(tensors_of(model)): model}
    asker.issue(prompts)
    wait_until(lambda: in_flight(server) == len(prompts))
    for update in range(updates):
        later = varied(model, seed=500 + update)
        models[server.push_next(tensors_of(later))] = later
    assert in_flight(server), "they ended too early for this test"
    return asker.collect(prompts), models


def test_long_completions_survive_several_updates_exactly(
    server: RolloutServer, asker: Asker, tied_model: tuple[Path, LlamaForCausalLM]
) -> None:
    prompts = [make_prompt(some_tokens(LONG, i), n=2, max_tokens=400) for i in range(4)]
    watched = make_prompt(some_tokens(LONG, 9), max_tokens=400, stop_token_ids=((97, 97, 97, 97),))
    groups, models = outlive_updates(server, asker, tied_model[1], [*prompts, watched], updates=4)
    for group in groups:
        for completion in group.completions:
            assert len(completion.token_ids) == 400
            versions = [span.version for span in completion.version_spans]
            assert versions == sorted(versions) and len(versions) >= 4 and versions[-1] == max(models)
        assert logprob_gap(group, models) < MAX_GAP


def test_kept_keys_and_values_serve_the_completions_in_flight_and_no_later_one(
    untied: tuple[RolloutServer, Asker, LlamaForCausalLM],
) -> None:
    server, asker, model = untied
    tokens = some_tokens(LONG, 0)
    question = {"model": "model", "prompt": tokens, "max_tokens": 8, "temperature": 0}

    def over_http() -> str:
        return str(server.client.post("/v1/completions", json=question).json()["choices"][0]["text"])

    server.push_next(tensors_of(model))
    over_http()  # vLLM's own route puts the prompt into its prefix cache too
    prompts = [make_prompt(some_tokens(LONG, i), n=4, max_tokens=400) for i in range(8)]
    groups, models = outlive_updates(server, asker, model, prompts, updates=2)
    assert max(logprob_gap(group, models) for group in groups) > 10 * MAX_GAP, "nothing was kept"
    later = [make_prompt(prompt.token_ids, max_tokens=16) for prompt in prompts]
    for group in asker.answers(later):
        assert group.min_version == max(models)
        assert logprob_gap(group, models) < MAX_GAP
    (exact,) = asker.answers([make_prompt(tokens, max_tokens=8, temperature=0.0)])
    assert over_http() == exact.completions[0].text


def test_a_completion_ends_with_the_stop_token_or_at_its_length(
    untied: tuple[RolloutServer, Asker, LlamaForCausalLM],
) -> None:
    _, asker, _ = untied
    groups = asker.answers([make_prompt(some_tokens(SHORT, i), n=4, max_tokens=60) for i in range(16)])
    reasons = set()
    for completion in (completion for group in groups for completion in group.completions):
        reasons.add(completion.finish_reason)
        assert EOS not in completion.token_ids[:-1] and "</s>" not in completion.text
        if completion.finish_reason == "stop":
            assert completion.token_ids[-1] == EOS
        else:
            assert len(completion.token_ids) == 60 and completion.token_ids[-1] != EOS
    assert reasons == {"stop", "length"}


def test_greedy_completions_repeat_themselves(server: RolloutServer, asker: Asker) -> None:
    prompt = some_tokens(LONG, 9)
    groups = asker.answers([make_prompt(prompt, temperature=0.0) for _ in range(2)])
    texts = {completion.text for group in groups for completion in group.completions}
    assert len(texts) == 1


def test_sigterm_ends_the_service_within_seconds_and_with_status_0(
    untied: tuple[RolloutServer, Asker, LlamaForCausalLM],
) -> None:
    server, asker, _ = untied
    prompts = [make_prompt(some_tokens(SHORT, i), n=4, max_tokens=400) for i in range(64)]
    asker.issue(prompts)
    wait_until(lambda: server.client.get("/v1/status").json()["groups_in_flight"] >= 32)
    server.process.terminate()
    assert server.process.wait(timeout=8) == 0
    assert not asker.streams.pending("prompts", server.id), "what was unfinished is handed back"
    waiting = [entry.id for entry in asker.streams.after("prompts", "0")]
    answered = [group.prompt.id for group in asker.answered(prompts)]
    assert waiting and sorted([*waiting, *answered]) == sorted(prompt.id for prompt in prompts)
    assert not list(server.weights_dir.iterdir())
