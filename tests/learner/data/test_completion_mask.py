"""Which tokens are trained on, for every way in which a completion may end. A completion's length says it;
nothing is inferred from token ids."""

from typing import Literal

import pytest
import torch

from services.learner.data.batch import ExperienceBatch, collate
from shared.experience import Completion, Float32Array, Group, Int32Array, VersionSpan
from tests.learner.samples import make_prompt

EOS = PAD = 0
"""The padding token is the end token, as with many base models, and also what the batch is padded with."""
LENGTH = 6
"""The length limit of completions."""


def batch_of(*completions: tuple[list[int], Literal["stop", "length"]]) -> ExperienceBatch:
    made = [
        Completion(
            token_ids=Int32Array(tokens),
            logprobs=Float32Array([-1.0] * len(tokens)),
            text="",
            finish_reason=reason,
            version_spans=[VersionSpan(0, len(tokens))],
            reward=1.0,
        )
        for tokens, reason in completions
    ]
    prompt = make_prompt("p", Int32Array([5, PAD, 6]), len(made))
    return collate([Group(prompt=prompt, completions=made, worker="w", weights_digest="")])


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        ([7, 8, EOS], "stop"),
        ([EOS], "stop"),
        ([7], "stop"),
        ([7, 8, 9, 7, 8, 9], "length"),
        ([7, 8, 9, 7, 8, EOS], "stop"),
        ([7, PAD, 8, 9], "stop"),
        ([1, 2, 3], "stop"),
    ],
    ids=[
        "end token that is also padding",
        "empty response: nothing but the end token",
        "first token a stop",
        "no stop, full length",
        "stop at full length",
        "a padding id was sampled in the middle",
        "a stop of several tokens at the end",
    ],
)
def test_every_sampled_token_counts_and_no_other(
    tokens: list[int], reason: Literal["stop", "length"]
) -> None:
    batch = batch_of((tokens, reason), ([4] * LENGTH, "length"))
    assert batch.completion_mask.shape == (2, LENGTH)
    assert batch.completion_mask[0].tolist() == [True] * len(tokens) + [False] * (LENGTH - len(tokens))
    assert batch.input_ids[0, 3 : 3 + len(tokens)].tolist() == tokens
    assert bool(batch.stopped[0]) is (reason == "stop") and not batch.stopped[1]
    assert torch.equal(batch.completion_lengths, torch.tensor([len(tokens), LENGTH]))
    assert batch.lengths.tolist() == [3 + len(tokens), 3 + LENGTH], "padding ids in a prompt count too"
