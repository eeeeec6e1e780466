import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.learner.data.batch import collate, micro_batches, minibatches
from shared.experience import Completion, Float32Array, Group, Int32Array, VersionSpan
from tests.learner.samples import make_groups, make_prompt


def completion(ids: list[int], **changes: object) -> Completion:
    fields = {
        "token_ids": Int32Array(ids),
        "logprobs": Float32Array([-0.5] * len(ids)),
        "text": "",
        "finish_reason": "stop",
        "version_spans": [VersionSpan(3, len(ids))] if ids else [],
        "reward": 1.0,
    }
    return Completion(**(fields | changes))  # type: ignore[arg-type]


def group(prompt: list[int], *completions: Completion) -> Group:
    return Group(
        prompt=make_prompt("p7", Int32Array(prompt), len(completions)),
        completions=list(completions),
        worker="w",
        weights_digest="",
    )


def test_each_completion_becomes_a_right_padded_row_in_order() -> None:
    spans = [VersionSpan(3, 1), VersionSpan(5, 2)]
    batch = collate(
        [
            group(
                [1, 2], completion([3, 4, 5], version_spans=spans), completion([6], finish_reason="length")
            ),
            group([7, 8, 9], completion([2], reward=-2.5, version_spans=[VersionSpan(5, 1)])),
        ]
    )
    assert batch.input_ids.tolist() == [[1, 2, 3, 4, 5], [1, 2, 6, 0, 0], [7, 8, 9, 2, 0]]
    assert batch.prompt_lengths.tolist() == [2, 2, 3]
    assert batch.completion_mask.tolist() == [[True] * 3, [True, False, False], [True, False, False]]
    assert batch.rollout_logprobs.tolist() == [[-0.5] * 3, [-0.5, 0, 0], [-0.5, 0, 0]]
    assert batch.rewards.tolist() == [1.0, 1.0, -2.5]
    assert batch.versions.tolist() == [3, 3, 5]
    assert batch.stopped.tolist() == [True, False, True]
    assert batch.groups.tolist() == [0, 0, 1]
    assert batch.lengths.tolist() == [5, 3, 4]


def test_rows_are_cut_to_the_longest_of_them() -> None:
    batch = collate(make_groups(6, 2))
    for rows in ([3], [0, 5, 7], list(range(12))):
        part = batch.rows(rows)
        assert part.input_ids.shape[1] == int(part.lengths.max())
        assert part.completion_mask.shape[1] == int(part.completion_lengths.max())
        assert part.rewards.tolist() == batch.rewards[rows].tolist()
        for position, row in enumerate(rows):
            length = int(batch.lengths[row])
            assert part.input_ids[position, :length].tolist() == batch.input_ids[row, :length].tolist()


def test_no_rows_make_one_row_without_completion_tokens() -> None:
    part = collate(make_groups(2, 2)).rows([])
    assert len(part) == 1 and not part.completion_mask.any()


def test_an_empty_completion_has_its_place_beside_others() -> None:
    batch = collate([group([1, 2], completion([]), completion([3]))])
    assert batch.completion_lengths.tolist() == [0, 1]
    assert batch.rows([0]).completion_mask.shape == (1, 0)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (completion([1], reward=None), "p7: a completion has reward None"),
        (completion([1], reward=float("nan")), "p7: a completion has reward nan"),
        (completion([1, 2], logprobs=Float32Array([-1.0])), "p7: 1 logprobs for 2 tokens"),
        (completion([1], logprobs=Float32Array([float("-inf")])), "p7: a completion has a rollout logprob"),
    ],
)
def test_a_completion_that_cannot_be_trained_on_is_refused(bad: Completion, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        collate([group([1], completion([1]), bad)])


def test_an_empty_prompt_and_an_empty_batch_are_refused() -> None:
    with pytest.raises(ValueError, match="p7 has no token"):
        collate([group([], completion([1]))])
    with pytest.raises(ValueError, match="no completion token to train on in 1 groups"):
        collate([group([1], completion([]))])


def test_groups_from_the_wire_collate_like_those_in_memory() -> None:
    from shared.codec import decode_group, encode

    groups = make_groups(3, 2)
    here, there = collate(groups), collate([decode_group(encode(g)) for g in groups])
    for name in ("input_ids", "rollout_logprobs", "completion_mask", "rewards"):
        assert torch.equal(getattr(here, name), getattr(there, name))
    assert msgspec.to_builtins(groups[0].prompt.sampling)["max_tokens"] == 9


@given(size=st.integers(1, 40), count=st.integers(1, 8), seed=st.integers(0, 99))
def test_minibatches_partition_the_rows_evenly_and_repeatably(size: int, count: int, seed: int) -> None:
    parts = minibatches(size, count, torch.Generator().manual_seed(seed))
    assert len(parts) == min(count, size) and all(parts)
    assert sorted(row for part in parts for row in part) == list(range(size))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert parts == minibatches(size, count, torch.Generator().manual_seed(seed))


CUTS = given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=30),
    budget=st.integers(1, 200),
    ranks=st.integers(1, 4),
    data=st.data(),
)


@CUTS
def test_micro_batches_deal_every_row_once_within_the_budget(
    lengths: list[int], budget: int, ranks: int, data: st.DataObject
) -> None:
    rows = data.draw(st.lists(st.sampled_from(range(len(lengths))), unique=True, min_size=1))
    cut = micro_batches(lengths, rows, budget, ranks)
    assert all(len(shares) == ranks for shares in cut)
    assert sorted(row for shares in cut for share in shares for row in share) == sorted(rows)
    for share in (share for shares in cut for share in shares if share):
        assert len(share) == 1 or sum(lengths[row] for row in share) <= budget
    shuffled = data.draw(st.permutations(rows))
    assert micro_batches(lengths, shuffled, budget, ranks) == cut


@CUTS
def test_passes_and_ranks_differ_by_no_more_than_the_longest_row(
    lengths: list[int], budget: int, ranks: int, data: st.DataObject
) -> None:
    rows = data.draw(st.lists(st.sampled_from(range(len(lengths))), unique=True, min_size=1))
    cut = micro_batches(lengths, rows, budget, ranks)
    tokens = torch.tensor([[sum(lengths[row] for row in share) for share in shares] for shares in cut])
    longest = max(lengths[row] for row in rows)
    assert int(tokens.max() - tokens.min()) <= longest
    of_ranks = tokens.sum(dim=0)
    assert int(of_ranks.max() - of_ranks.min()) <= longest
    assert int(tokens.max()) == int(tokens[0].max()), "the largest pass does not come first"


def test_a_minibatch_is_cut_evenly_into_no_more_passes_than_it_needs() -> None:
    assert micro_batches([9, 2, 8, 1], [0, 1, 2, 3], 20, 1) == [[[0, 2, 1, 3]]]
    assert micro_batches([9, 2, 8, 1], [0, 1, 2, 3], 19, 1) == [[[0, 3]], [[2, 1]]]
    assert micro_batches([9, 2, 8, 1], [0, 1, 2, 3], 10, 2) == [[[0, 3], [2, 1]]]
    assert micro_batches([9, 2, 8, 1], [0, 1, 2, 3], 9, 2) == [[[0], [2]], [[3], [1]]]
    demo = [80] * 33
    assert [len(share) for [share] in micro_batches(demo, range(33), 1500, 1)] == [17, 16]
