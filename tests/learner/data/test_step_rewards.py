"""Rewards at places of a text, on the tokens that end there."""

from collections.abc import Sequence

import pytest
import torch
from msgspec.structs import replace

from services.learner.data.batch import collate
from services.learner.data.step_rewards import token_at
from shared.experience import Float32Array, Int32Array, VersionSpan
from shared.scoring import StepReward
from tests.learner.samples import make_groups

PIECES = ["", "ab", "c", "", "def"]


def decode(ids: Sequence[int]) -> str:
    """Tokens 0 and 3 have no text, as special ones."""
    return "".join(PIECES[id] for id in ids)


@pytest.mark.parametrize(("end", "position"), [(0, 0), (1, 1), (2, 1), (3, 2), (4, 4), (6, 4), (7, 4)])
def test_a_place_in_the_text_belongs_to_the_token_that_reaches_it(end: int, position: int) -> None:
    assert token_at([0, 1, 2, 3, 4], end, decode) == position


def test_the_batch_has_them_at_their_tokens_and_nowhere_else() -> None:
    groups = make_groups(1, 3)
    first, *others = groups[0].completions
    three = replace(
        first,
        token_ids=Int32Array([1, 2, 4]),
        logprobs=Float32Array([-1.0] * 3),
        version_spans=[VersionSpan(0, 3)],
        step_rewards=[StepReward(2, 0.5), StepReward(3, -1.0), StepReward(3, 3.0)],
    )
    groups[0].completions = [three, *others]
    batch = collate(groups, decode)
    expected = torch.zeros(batch.completion_mask.shape)
    expected[0, :2] = torch.tensor([0.5, 2.0])
    torch.testing.assert_close(batch.step_rewards, expected)


def test_without_a_tokenizer_they_are_refused() -> None:
    groups = make_groups(1, 1)
    groups[0].completions[0].step_rewards = [StepReward(1, 0.5)]
    with pytest.raises(ValueError, match="rewards at steps"):
        collate(groups)
