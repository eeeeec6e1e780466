"""What is put on a stream comes back the same, and what others put there is checked."""

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.codec import MalformedEntry, decode_group, decode_prompt, encode
from shared.experience import (
    SCHEMA,
    Completion,
    Float32Array,
    Group,
    Int32Array,
    Prompt,
    Sampling,
    VersionSpan,
    prompt_id,
)
from shared.scoring import StepReward


def a_prompt(**changes: Any) -> Prompt:
    fields: dict[str, Any] = {
        "id": prompt_id("run", "train", 0, 7),
        "epoch": 0,
        "index": 7,
        "n": 1,
        "issued_version": 3,
        "text": "How many?",
        "token_ids": Int32Array([1, 2, 3]),
        "sampling": Sampling(max_tokens=16),
    }
    return Prompt(**(fields | changes))


def a_group(**changes: Any) -> Group:
    fields: dict[str, Any] = {
        "token_ids": Int32Array([4, 5]),
        "logprobs": Float32Array([-0.5, -1.25]),
        "text": "answer",
        "finish_reason": "stop",
        "version_spans": [VersionSpan(3, 1), VersionSpan(4, 1)],
    }
    completion = Completion(**(fields | changes))
    return Group(prompt=a_prompt(), completions=[completion], worker="w", weights_digest="d")


@given(logprobs=st.lists(st.sampled_from([-3.4e38, -1.0, 0.0, 3.4e38]), min_size=2, max_size=2))
def test_logprobs_as_large_as_32_bits_hold_are_finite(logprobs: list[float]) -> None:
    group = decode_group(encode(a_group(logprobs=Float32Array(logprobs))))
    assert group.completions[0].logprobs == Float32Array(logprobs)


def test_rewards_at_steps_come_back_and_have_places_in_the_text() -> None:
    steps = [StepReward(0, -1.0), StepReward(6, 0.5)]
    assert decode_group(encode(a_group(step_rewards=steps))).completions[0].step_rewards == steps
    for bad in (StepReward(7, 0.5), StepReward(-1, 0.5), StepReward(2, math.nan)):
        with pytest.raises(MalformedEntry, match="step's reward"):
            decode_group(encode(a_group(step_rewards=[bad])))


@given(
    text=st.text(),
    token_ids=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=20),
    truth=st.none() | st.text(),
    metadata=st.dictionaries(st.text(), st.none() | st.booleans() | st.text() | st.integers(-9, 9)),
)
def test_a_prompt_comes_back_as_it_went(
    text: str, token_ids: list[int], truth: str | None, metadata: dict[str, Any]
) -> None:
    prompt = a_prompt(text=text, token_ids=Int32Array(token_ids), ground_truth=truth, metadata=metadata)
    assert decode_prompt(encode(prompt)) == prompt


@given(
    logprobs=st.lists(st.floats(max_value=0, width=32, allow_infinity=False), min_size=1, max_size=20),
    reward=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    text=st.text(),
)
def test_a_group_comes_back_as_it_went(logprobs: list[float], reward: float | None, text: str) -> None:
    group = a_group(
        token_ids=Int32Array(range(len(logprobs))),
        logprobs=Float32Array(logprobs),
        version_spans=[VersionSpan(3, len(logprobs))],
        reward=reward,
        text=text,
    )
    assert decode_group(encode(group)) == group


@given(st.binary(max_size=200))
def test_any_bytes_are_either_a_group_or_refused(payload: bytes) -> None:
    with pytest.raises(MalformedEntry):
        decode_group(payload)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"token_ids": Int32Array()}, "completion 0 is empty"),
        ({"token_ids": Int32Array([1])}, "1 tokens but 2 logprobs"),
        ({"token_ids": Int32Array([1, -1])}, "negative token id -1"),
        ({"token_ids": Int32Array([-(2**31), 2**31 - 1])}, "negative token id -2147483648"),
        ({"logprobs": Float32Array([math.nan, 0])}, "not finite"),
        ({"logprobs": Float32Array([math.inf, -math.inf])}, "not finite"),
        ({"logprobs": Float32Array([-0.5, -math.inf])}, "not finite"),
        ({"version_spans": [VersionSpan(0, 3)]}, "2 tokens but version spans over 3"),
        ({"version_spans": [VersionSpan(0, 3), VersionSpan(1, -1)]}, "`int` >= 1"),
        ({"reward": math.inf}, "reward inf"),
        ({"finish_reason": "bored"}, "bored"),
    ],
)
def test_a_malformed_completion_is_refused_with_its_fault(changes: dict[str, Any], cause: str) -> None:
    with pytest.raises(MalformedEntry, match=cause):
        decode_group(encode(a_group(**changes)))


def test_a_group_with_a_completion_missing_is_refused() -> None:
    group = a_group()
    group.completions = []
    with pytest.raises(MalformedEntry, match="0 completions and 0 failed ones for a prompt with n=1"):
        decode_group(encode(group))
    group.failed = ["0: the judge is away"]
    with pytest.raises(MalformedEntry, match="0 completions and 1 failed ones"):
        decode_group(encode(group))


def test_an_unknown_schema_is_refused_by_its_number() -> None:
    with pytest.raises(MalformedEntry, match=f"schema {SCHEMA + 1} is unknown"):
        decode_prompt(encode(a_prompt(schema=SCHEMA + 1)))
    with pytest.raises(MalformedEntry, match="schema None is unknown"):
        decode_group(msgspec.msgpack.encode({"something": "else"}))


def test_a_prompt_without_tokens_is_refused() -> None:
    with pytest.raises(MalformedEntry, match="has no tokens"):
        decode_prompt(encode(a_prompt(token_ids=Int32Array())))


def test_how_completions_are_drawn_and_stopped_comes_back_as_it_went() -> None:
    sampling = Sampling(max_tokens=9, min_p=0.1, repetition_penalty=1.1, seed=2**56 - 1,
                        stop=("</answer>",), stop_token_ids=((5,), (7, 8)))  # fmt: skip
    assert decode_prompt(encode(a_prompt(sampling=sampling))).sampling == sampling


@pytest.mark.parametrize(
    "stops", [{"stop": [""]}, {"stop_token_ids": [[]]}, {"stop_token_ids": [[-1]]}, {"stop_token_ids": [5]}]
)
def test_a_stop_that_could_never_be_meant_is_refused(stops: dict[str, Any]) -> None:
    raw = msgspec.msgpack.decode(encode(a_prompt()))
    raw["sampling"] |= stops
    with pytest.raises(MalformedEntry, match="cannot be decoded"):
        decode_prompt(msgspec.msgpack.encode(raw))


def test_each_prompt_draws_from_a_seed_of_its_own() -> None:
    sampling = Sampling(max_tokens=9, seed=0)
    seeds = {sampling.of_prompt(*key).seed for key in [("train", 0, 1), ("train", 0, 1), ("train", 1, 1),
                                                       ("train", 0, 2), ("eval", 0, 1)]}  # fmt: skip
    assert len(seeds) == 4 and all(seed is not None and 0 <= seed < 2**56 for seed in seeds)
    unseeded = Sampling(max_tokens=9)
    assert unseeded.of_prompt("train", 0, 1) is unseeded


def test_an_array_of_broken_length_is_refused() -> None:
    raw = msgspec.msgpack.decode(encode(a_group()))
    raw["completions"][0]["token_ids"] = b"\x01\x02\x03"
    with pytest.raises(MalformedEntry, match="3 bytes"):
        decode_group(msgspec.msgpack.encode(raw))


def test_readable_fields_show_the_reward_only_when_all_is_scored() -> None:
    assert "reward_mean" not in a_group().fields()
    fields = a_group(reward=10.0, components={"gsm8k_reward_fn": 10.0}).fields()
    assert (fields["status"], fields["reward_mean"], fields["scorers"]) == ("ok", 10.0, "gsm8k_reward_fn")
    assert (fields["tokens"], fields["min_version"], fields["max_version"]) == (2, 3, 4)


def test_a_prompt_id_depends_on_run_purpose_epoch_and_row_only() -> None:
    ids = {prompt_id(*key) for key in [("a", "train", 0, 1), ("b", "train", 0, 1), ("a", "eval", 0, 1),
                                       ("a", "train", 1, 1), ("a", "train", 0, 2)]}  # fmt: skip
    assert len(ids) == 5
    assert prompt_id("a", "train", 0, 1) in ids
