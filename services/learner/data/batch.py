"""Experiences as padded tensors, and how they are cut into minibatches and micro-batches.

Shapes: `B` completions, `S` prompt and completion tokens, `T` completion tokens.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from services.learner.data.step_rewards import Decode, token_rewards
from shared.experience import Completion, Group


@dataclass(frozen=True)
class ExperienceBatch:
    """Every completion of one PPO update; the same on every rank."""

    input_ids: Tensor
    """Prompt, then completion, then padding. [B, S]"""
    prompt_lengths: Tensor
    """[B]"""
    completion_mask: Tensor
    """True on the completion's tokens, contiguous from position 0. [B, T]"""
    rollout_logprobs: Tensor
    """Log-probability of each token as the engine sampled it. [B, T]"""
    rewards: Tensor
    """[B]"""
    step_rewards: Tensor
    """What of `rewards` is earned at tokens before the end. [B, T]"""
    versions: Tensor
    """The oldest `policy_version` among the tokens of each completion. [B]"""
    token_versions: Tensor
    """The `policy_version` that sampled each token. [B, T]"""
    stopped: Tensor
    """True where the completion ended by itself, false where its length limit cut it. [B]"""
    groups: Tensor
    """Index of the prompt group each completion belongs to. [B]"""

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def completion_lengths(self) -> Tensor:
        return self.completion_mask.sum(dim=1)

    @property
    def lengths(self) -> Tensor:
        """Prompt and completion tokens of each row. [B]"""
        return self.prompt_lengths + self.completion_lengths

    def to(self, device: torch.device) -> "ExperienceBatch":
        return ExperienceBatch(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})

    def rows(self, indices: Sequence[int]) -> "ExperienceBatch":
        """These rows only, cut to the longest of them. Without indices: one row that has no completion token.

        A rank that has no row in a micro-batch computes on that empty row, since the other ranks wait for it
        in their collectives.
        """
        if not indices:
            first = self.rows([0])
            return replace(first, completion_mask=torch.zeros_like(first.completion_mask))
        index = torch.as_tensor(indices, device=self.rewards.device)
        part = ExperienceBatch(**{f.name: getattr(self, f.name)[index] for f in fields(self)})
        longest, longest_completion = int(part.lengths.max()), int(part.completion_lengths.max())
        return replace(
            part,
            input_ids=part.input_ids[:, :longest],
            completion_mask=part.completion_mask[:, :longest_completion],
            rollout_logprobs=part.rollout_logprobs[:, :longest_completion],
            token_versions=part.token_versions[:, :longest_completion],
            step_rewards=part.step_rewards[:, :longest_completion],
        )


def collate(groups: Sequence[Group], decode: Decode | None = None) -> ExperienceBatch:
    """One row for each completion of each group, in order.

    Args:
        decode: token ids to their text as scorers saw it; for completions with rewards at steps.

    Raises:
        ValueError: there is no completion token at all, or a completion is without a finite reward, with
            logprobs that are not finite or do not match its tokens, or with an empty prompt. The message
            names the prompt id.
    """
    pairs = [(index, group, c) for index, group in enumerate(groups) for c in group.completions]
    if not any(c.token_ids for _, _, c in pairs):
        raise ValueError(f"no completion token to train on in {len(groups)} groups")
    for _, group, completion in pairs:
        _check(group, completion)
    sequences = [list(chain(group.prompt.token_ids, c.token_ids)) for _, group, c in pairs]
    lengths = torch.tensor([len(c.token_ids) for _, _, c in pairs])
    return ExperienceBatch(
        input_ids=torch.from_numpy(_pad(sequences, np.int64)),
        prompt_lengths=torch.tensor([len(group.prompt.token_ids) for _, group, _ in pairs]),
        completion_mask=torch.arange(int(lengths.max())) < lengths[:, None],
        rollout_logprobs=torch.from_numpy(_pad([c.logprobs for _, _, c in pairs], np.float32)),
        rewards=torch.tensor([c.reward for _, _, c in pairs], dtype=torch.float32),
        step_rewards=torch.from_numpy(_pad([token_rewards(c, decode) for _, _, c in pairs], np.float32)),
        versions=torch.tensor([_oldest_version(group, c) for _, group, c in pairs]),
        token_versions=torch.from_numpy(_pad([_token_versions(c) for _, _, c in pairs], np.int64)),
        stopped=torch.tensor([c.finish_reason == "stop" for _, _, c in pairs]),
        groups=torch.tensor([index for index, _, _ in pairs]),
    )


def minibatches(batch_size: int, count: int, generator: torch.Generator) -> list[list[int]]:
    """A random partition of the rows into `count` minibatches of nearly equal size.

    Every rank passes a generator in the same state and so gets the same partition. Where completions have
    failed and fewer rows than `count` are left, each row is a minibatch.
    """
    order = torch.randperm(batch_size, generator=generator)
    return [part.tolist() for part in order.tensor_split(min(count, batch_size))]


def micro_batches(
    lengths: Sequence[int], rows: Sequence[int], max_tokens: int, ranks: int
) -> list[list[list[int]]]:
    """Deal rows to ranks and cut each rank's share into forward passes of nearly equally many tokens.

    There are as few passes as an even deal allows, so none is small while others are full, and the ranks'
    tokens differ by no more than the longest row has, in each pass and in all. The largest pass comes first,
    so that a lack of memory shows at once. Each rank gets as many micro-batches as any other, the last of
    which may be empty for some.

    Args:
        lengths: tokens of every row of the batch.
        rows: the rows to deal, as indices into `lengths`; their order does not matter.
        max_tokens: tokens in one micro-batch of one rank; a longer row has one to itself.

    Returns:
        For each micro-batch, for each rank, the row indices.
    """
    by_length = sorted(rows, key=lambda row: (-lengths[row], row))
    passes = math.ceil(sum(lengths[row] for row in rows) / (max_tokens * ranks))
    while True:
        dealt = _deal(lengths, by_length, passes * ranks)
        if all(tokens <= max_tokens or len(share) == 1 for tokens, share in dealt):
            break
        passes += 1
    shares = [share for _, share in dealt]
    cut = [shares[start : start + ranks] for start in range(0, len(shares), ranks)]
    # The first of a micro-batch is its largest share: it goes to the first rank and to the last in turn.
    return [part[::-1] if index % 2 else part for index, part in enumerate(cut)]


def _deal(lengths: Sequence[int], by_length: Sequence[int], count: int) -> list[tuple[int, list[int]]]:
    """Each row, the longest first, to the share with the fewest tokens (Graham 1969); the largest first.

    Shares then differ by no more than the longest row.
    """
    heap: list[tuple[int, int, list[int]]] = [(0, index, []) for index in range(count)]
    for row in by_length:
        tokens, index, share = heap[0]
        heapq.heapreplace(heap, (tokens + lengths[row], index, [*share, row]))
    return [(tokens, share) for tokens, _, share in sorted(heap, key=lambda filled: (-filled[0], filled[1]))]


def _check(group: Group, completion: Completion) -> None:
    prompt = group.prompt
    if completion.reward is None or not math.isfinite(completion.reward):
        raise ValueError(
            f"prompt {prompt.id}: a completion has reward {completion.reward}; only scored groups train"
        )
    if len(completion.logprobs) != len(completion.token_ids):
        raise ValueError(
            f"prompt {prompt.id}: {len(completion.logprobs)} logprobs for {len(completion.token_ids)} tokens"
        )
    if not np.isfinite(completion.logprobs).all():
        raise ValueError(f"prompt {prompt.id}: a completion has a rollout logprob that is not finite")
    if not prompt.token_ids:
        raise ValueError(
            f"prompt {prompt.id} has no token: a value needs a state before the first completion token"
        )


def _oldest_version(group: Group, completion: Completion) -> int:
    """A completion without tokens has no spans; it can be no older than its prompt."""
    return min((span.version for span in completion.version_spans), default=group.prompt.issued_version)


def _token_versions(completion: Completion) -> list[int]:
    return [span.version for span in completion.version_spans for _ in range(span.tokens)]


def _pad(rows: Sequence[Sequence[float]], dtype: type[np.generic]) -> np.ndarray:
    """Rows of differing length as one array, zeros to their right."""
    padded = np.zeros((len(rows), max(map(len, rows))), dtype=dtype)
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)] = row
    return padded
