"""An experience that must not be trained on is refused with its fault."""

import math
from typing import Any

import msgspec
import pytest

from services.learner.validation import check_answer, decode_experience
from shared.codec import MalformedEntry, decode_group, encode
from shared.entry import Entry
from shared.experience import Completion, Float32Array, Group, Int32Array, Prompt, Sampling, VersionSpan


def make_entry(entry_for: str = "a", ids: list[int] | None = None, **changes: Any) -> Entry:
    """Two completions; `ids` are the second one's."""
    prompt = Prompt(
        id="a", epoch=0, index=0, n=2, issued_version=3, text="p", token_ids=Int32Array([1]),
        sampling=Sampling(max_tokens=4),
    )  # fmt: skip
    second = {"reward": 1.0, "version": 3} | changes
    completions = [
        Completion(
            token_ids=Int32Array(tokens), logprobs=Float32Array([-1.0] * len(tokens)), text="c",
            finish_reason="stop", version_spans=[VersionSpan(version, len(tokens))], reward=reward,
        )
        for tokens, version, reward in [([5, 99], 3, 0.5), (ids or [7], second["version"], second["reward"])]
    ]  # fmt: skip
    group = Group(prompt=prompt, completions=completions, worker="w", weights_digest="d")
    return Entry("1-1", {"id": entry_for}, encode(group))


def test_a_sound_experience_comes_out_as_its_group() -> None:
    assert decode_experience(make_entry(), vocabulary=100).prompt.id == "a"


@pytest.mark.parametrize(
    ("entry", "cause"),
    [
        (make_entry(ids=[7, 100]), "completion 1 has token id 100; the policy's vocabulary has 100"),
        (make_entry(reward=None), "completion 1 has no reward"),
        (make_entry(version=2), "version 2, older than the prompt's 3"),
        (make_entry(entry_for="b"), "the entry is for prompt b, its payload for a"),
    ],
)
def test_an_unsound_experience_is_refused_with_its_fault(entry: Entry, cause: str) -> None:
    with pytest.raises(MalformedEntry, match=cause):
        decode_experience(entry, vocabulary=100)


def test_a_group_answers_its_prompt_whatever_its_metadata_holds() -> None:
    group = decode_group(make_entry(ids=[7, 7, 7, 7]).payload)
    check_answer(group, group.prompt)
    strange = {"score": math.nan, "sizes": (1, 2)}
    issued = msgspec.structs.replace(group.prompt, metadata=strange)
    group.prompt = issued
    check_answer(decode_group(encode(group)), issued)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"token_ids": Int32Array([2])}, "another token_ids$"),
        ({"sampling": Sampling(max_tokens=400), "ground_truth": "1"}, "another sampling, ground_truth$"),
        ({"n": 3, "purpose": "eval"}, "another purpose, n$"),
        ({"metadata": {"tests": []}}, "another metadata$"),
    ],
)
def test_an_answer_to_another_prompt_than_the_one_issued_is_refused(
    change: dict[str, Any], cause: str
) -> None:
    group = decode_group(make_entry().payload)
    with pytest.raises(MalformedEntry, match=cause):
        check_answer(group, msgspec.structs.replace(group.prompt, **change))


def test_a_completion_longer_than_was_asked_for_is_refused() -> None:
    group = decode_group(make_entry(ids=[7] * 5).payload)
    with pytest.raises(MalformedEntry, match="has 5 tokens; the prompt asked for 4 at most"):
        check_answer(group, group.prompt)
