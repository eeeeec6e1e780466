"""Supervised rows as padded tensors, in the form that the policy's passes take.

Shapes: `B` rows, `S` tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from services.learner.data.supervised import PtxRow, sample


@dataclass(frozen=True)
class SupervisedBatch:
    """Rows of which everything after the first token is predicted, and the masked tokens are taught."""

    input_ids: Tensor
    """Right-padded. [B, S]"""
    prompt_lengths: Tensor
    """1 everywhere: the first token is given. [B]"""
    completion_mask: Tensor
    """True where the token after it is taught. [B, S - 1]"""
    lengths: Tensor
    """Tokens of each row. [B]"""

    def rows(self, indices: Sequence[int]) -> "SupervisedBatch":
        """These rows, cut to the longest. Without indices: one row that teaches nothing, for a rank that only
        has to take part in the others' collectives."""
        if not indices:
            first = self.rows([0])
            return replace(first, completion_mask=torch.zeros_like(first.completion_mask))
        index = torch.as_tensor(indices, device=self.lengths.device)
        longest = int(self.lengths[index].max())
        return SupervisedBatch(
            input_ids=self.input_ids[index, :longest],
            prompt_lengths=self.prompt_lengths[index],
            completion_mask=self.completion_mask[index, : longest - 1],
            lengths=self.lengths[index],
        )


class PtxSource:
    """The supervised rows of each optimizer step, as a function of the step alone."""

    def __init__(self, rows: Sequence[PtxRow], size: int, seed: int, device: torch.device) -> None:
        self._rows = rows
        self._size = size
        self._seed = seed
        self._device = device

    def batch(self, step: int) -> SupervisedBatch:
        """The whole minibatch of optimizer step `step` (from 0), the same on every rank."""
        rows = [self._rows[i] for i in sample(len(self._rows), self._size, self._seed, step)]
        return collate_rows(rows, self._device)


def collate_rows(rows: Sequence[PtxRow], device: torch.device) -> SupervisedBatch:
    lengths = torch.tensor([len(row.token_ids) for row in rows])
    input_ids = torch.zeros(len(rows), int(lengths.max()), dtype=torch.long)
    taught = torch.zeros_like(input_ids, dtype=torch.bool)
    for target, mask, row in zip(input_ids, taught, rows, strict=True):
        target[: len(row.token_ids)] = torch.tensor(list(row.token_ids))
        mask[: len(row.token_ids)] = torch.tensor(row.loss_mask)
    return SupervisedBatch(
        input_ids.to(device),
        torch.ones(len(rows), dtype=torch.long, device=device),
        taught[:, 1:].to(device),
        lengths.to(device),
    )
