"""The generation dials in a real engine: the distribution that is drawn from, and what ends a completion."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from shared.experience import Completion
from tests.rollout.asking import Asker, logprob_gap, make_prompt, some_tokens
from tests.rollout.server import RolloutServer
from tests.rollout.tiny_model import VOCABULARY, reciting, tensors_of, varied

PAD = VOCABULARY.index("<pad>")
RECITED = (
    ("=", "<", "/", "a", "n", "s", "w", "e", "r", ">\n", "<pad>", "1", "2", "3"),
    ("#", "7", "8", "9"),
)
"""`=` is answered with `</answer>`, a line end, a special token and more; `#` with 789789..."""

Model = tuple[Path, LlamaForCausalLM]


@pytest.mark.parametrize(
    "dials",
    [
        {"top_p": 0.7},
        {"min_p": 0.2},
        {"repetition_penalty": 1.5},
        {"temperature": 0.8, "top_p": 0.8, "top_k": 30, "min_p": 0.02, "repetition_penalty": 1.2},
    ],
    ids=str,
)
def test_logprobs_are_of_the_distribution_that_the_dials_leave(
    dials: dict[str, Any], server: RolloutServer, asker: Asker, tied_model: Model
) -> None:
    current = varied(tied_model[1], seed=300)
    version = server.push_next(tensors_of(current))
    prompts = [make_prompt(some_tokens(20, 1), n=3, **dials), make_prompt(some_tokens(75, 2), **dials)]
    for group in asker.answers(prompts):
        assert logprob_gap(group, {version: current}) < 1e-4


def test_a_seed_repeats_completions_also_where_they_are_watched_for_stops(
    server: RolloutServer, asker: Asker
) -> None:
    never = (3, 3, 3, 3, 3, 3)
    kinds: list[dict[str, Any]] = [
        {"seed": 7},
        {"seed": 7},
        {"seed": 7, "stop_token_ids": (never,)},
        {"seed": 8},
    ]
    prompts = [make_prompt(some_tokens(20, 1), n=3, **kind) for kind in kinds]
    by_id = {group.prompt.id: group for group in asker.answers(prompts)}
    tokens = [[list(c.token_ids) for c in by_id[prompt.id].completions] for prompt in prompts]
    assert tokens[0] == tokens[1] == tokens[2] != tokens[3]
    assert tokens[0][0] != tokens[0][1], "each completion of a group has random numbers of its own"


@pytest.fixture(scope="module")
def recital(server: RolloutServer, tied_model: Model) -> Iterator[LlamaForCausalLM]:
    """The server recites while a test of this module wants it to."""
    model = reciting(tied_model[1], RECITED)
    server.push_next(tensors_of(model))
    yield model
    server.push_next(tensors_of(tied_model[1]))


def ask(asker: Asker, text: str, n: int = 2, **sampling: Any) -> Completion:
    """What every one of the `n` completions is."""
    (group,) = asker.answers([make_prompt([VOCABULARY.index(c) for c in text], n=n, **sampling)])
    first = group.completions[0]
    for completion in group.completions:
        assert (completion.token_ids, completion.text) == (first.token_ids, first.text)
        assert len(completion.logprobs) == len(completion.token_ids)
        assert max(completion.logprobs) <= 0 and min(completion.logprobs) > -0.01
        assert sum(span.tokens for span in completion.version_spans) == len(completion.token_ids)
    return first


def ids(*tokens: str) -> tuple[int, ...]:
    return tuple(VOCABULARY.index(token) for token in tokens)


def test_without_a_stop_a_completion_has_its_full_length(recital: LlamaForCausalLM, asker: Asker) -> None:
    completion = ask(asker, "=", max_tokens=17)
    assert completion.finish_reason == "length" and len(completion.token_ids) == 17
    assert completion.text == "</answer>\n123</an", "without the special token, which is in token_ids"
    assert PAD in completion.token_ids


def test_a_stop_text_stays_and_so_does_the_whole_token_that_completes_it(
    recital: LlamaForCausalLM, asker: Asker
) -> None:
    completion = ask(asker, "=", stop=("</answer>",))
    assert completion.finish_reason == "stop"
    assert completion.text == "</answer>\n", "what a scorer gets"
    assert tuple(completion.token_ids) == ids("<", "/", "a", "n", "s", "w", "e", "r", ">\n")
    assert ask(asker, "#", stop=("97", "89"), n=1, temperature=0.0).text == "789", "whichever comes first"


def test_a_stop_text_may_be_a_special_token(recital: LlamaForCausalLM, asker: Asker) -> None:
    completion = ask(asker, "=", stop=("<pad>",))
    assert completion.finish_reason == "stop" and completion.token_ids[-1] == PAD
    assert completion.text == "</answer>\n"


@pytest.mark.parametrize(
    ("stops", "text"),
    [
        ([("9",)], "789"),
        ([("8", "9")], "789"),
        ([("9", "7", "8")], "78978"),
        ([("7",)], "7"),
        ([("7", "8")], "78"),
        ([("9", "7"), ("8",)], "78"),
        ([("9", "7"), ("8", "9", "7"), ("1", "2")], "7897"),
        ([("7", "9"), ("8",)], "78"),
    ],
    ids=str,
)
@pytest.mark.parametrize("n", [1, 3])
def test_stop_tokens_end_a_completion_at_their_end(
    stops: list[tuple[str, ...]], text: str, n: int, recital: LlamaForCausalLM, asker: Asker
) -> None:
    sequences = tuple(ids(*stop) for stop in stops)
    completion = ask(asker, "#", n=n, max_tokens=60, stop_token_ids=sequences)
    assert (completion.text, completion.finish_reason) == (text, "stop")


def test_the_end_of_a_stop_sequence_alone_stops_nothing(recital: LlamaForCausalLM, asker: Asker) -> None:
    completion = ask(asker, "#", max_tokens=12, stop_token_ids=(ids("1", "9"),))
    assert (completion.text, completion.finish_reason) == ("789789789789", "length")


def test_a_completion_that_is_stopped_is_not_generated_on(recital: LlamaForCausalLM, asker: Asker) -> None:
    def seconds(**stop: Any) -> float:
        started = time.monotonic()
        ask(asker, "#", n=1, max_tokens=400, **stop)
        return time.monotonic() - started

    whole = seconds()
    assert seconds(stop_token_ids=(ids("8", "9"),)) < whole / 3
    assert seconds(stop=("89",)) < whole / 3


def test_a_stop_sequence_may_not_begin_in_the_prompt(recital: LlamaForCausalLM, asker: Asker) -> None:
    completion = ask(asker, "#7", max_tokens=12, stop_token_ids=(ids("7", "8"),))
    assert completion.text == "8978", "not 8, though prompt and completion have 78"


@pytest.mark.parametrize("stop", [{"stop_token_ids": (ids("8", "9"),)}, {"stop_token_ids": (ids("9"),)},
                                  {"stop": ("89",)}], ids=str)  # fmt: skip
def test_a_stop_at_full_length_is_a_stop(stop: Any, recital: LlamaForCausalLM, asker: Asker) -> None:
    completion = ask(asker, "#", max_tokens=3, **stop)
    assert (completion.text, completion.finish_reason) == ("789", "stop")


def test_a_response_may_be_nothing_but_its_stop(recital: LlamaForCausalLM, asker: Asker) -> None:
    (group,) = asker.answers([make_prompt(ids(">\n"), n=2, stop_token_ids=((PAD,),))])
    for completion in group.completions:
        assert list(completion.token_ids) == [PAD], "a padding id that was sampled is a token like any other"
        assert completion.text == "" and completion.finish_reason == "stop"


def test_what_was_cut_keeps_the_logprobs_of_its_tokens(
    recital: LlamaForCausalLM, server: RolloutServer, asker: Asker, tied_model: Model
) -> None:
    current = varied(tied_model[1], seed=301)
    version = server.push_next(tensors_of(current))
    seeded = {"seed": 3, "max_tokens": 40}
    (free,) = asker.answers([make_prompt(some_tokens(20, 5), **seeded)])
    stop = tuple(free.completions[0].token_ids[20:23])
    (cut,) = asker.answers([make_prompt(some_tokens(20, 5), stop_token_ids=(stop,), **seeded)])
    server.push_next(tensors_of(recital))
    assert len(cut.completions[0].token_ids) <= 23 and cut.completions[0].finish_reason == "stop"
    assert cut.completions[0].token_ids == free.completions[0].token_ids[: cut.tokens]
    assert logprob_gap(cut, {version: current}) < 1e-4
    expected = torch.tensor(free.completions[0].logprobs[: cut.tokens])
    assert torch.allclose(torch.tensor(cut.completions[0].logprobs), expected, atol=1e-4)
