"""Made-up experience of realistic lengths, for measuring the learner without the other services."""

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from services.learner.data.batch import ExperienceBatch
from services.learner.targets import Targets

Spread = Literal["demo", "lognormal"]


def draw_lengths(spread: Spread, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Prompt and completion lengths in tokens. [count] each

    `demo`: as on the arithmetic task, about 42 and 45 tokens. `lognormal`: completions of 10 to 512 tokens,
    half of them below 90, as reasoning models write them: many short ones and a long tail.
    """
    if spread == "demo":
        prompts = torch.randint(36, 49, (count,), generator=generator)
        return prompts, torch.randint(35, 56, (count,), generator=generator)
    prompts = torch.randint(24, 65, (count,), generator=generator)
    drawn = (torch.randn(count, generator=generator) * 0.9 + 4.5).exp()
    return prompts, drawn.round().long().clamp(10, 512)


def make_batch(spread: Spread, count: int, vocabulary: int, seed: int) -> ExperienceBatch:
    """`count` completions of random tokens, as `collate` would give them."""
    generator = torch.Generator().manual_seed(seed)
    prompts, completions = draw_lengths(spread, count, generator)
    lengths = prompts + completions
    longest = int(lengths.max())
    ids = torch.randint(0, vocabulary, (count, longest), generator=generator)
    mask = torch.arange(int(completions.max())) < completions[:, None]
    zeros = torch.zeros(mask.shape)
    return ExperienceBatch(
        input_ids=torch.where(torch.arange(longest) < lengths[:, None], ids, 0),
        prompt_lengths=prompts,
        completion_mask=mask,
        rollout_logprobs=zeros,
        rewards=torch.randn(count, generator=generator),
        step_rewards=zeros,
        versions=torch.zeros(count, dtype=torch.long),
        token_versions=zeros.long(),
        stopped=torch.ones(count, dtype=torch.bool),
        groups=torch.arange(count),
    )


def make_targets(batch: ExperienceBatch, old_logprobs: Tensor, seed: int) -> Targets:
    """Random advantages, as whitened ones would be, around these old logprobs."""
    generator = torch.Generator().manual_seed(seed)
    advantages = torch.randn(batch.completion_mask.shape, generator=generator).to(old_logprobs.device)
    zeros = torch.zeros_like(old_logprobs)
    targets = Targets(
        old_logprobs=old_logprobs,
        ref_logprobs=old_logprobs,
        old_values=zeros,
        kl=zeros,
        advantages=zeros,
        returns=zeros,
        weights=torch.ones_like(zeros),
    )
    return replace(targets, advantages=torch.where(batch.completion_mask, advantages, 0.0))
