"""Issues prompts as the learner does, and collects the groups that come back."""

import itertools
import math
from collections.abc import Sequence

import torch
from transformers import LlamaForCausalLM

from shared.codec import decode_group, encode
from shared.experience import Completion, Group, Int32Array, Prompt, Sampling
from shared.stream import Streams
from tests.rollout.server import wait_until

_numbers = itertools.count()


def make_prompt(token_ids: Sequence[int], n: int = 1, issued_version: int = 0, **sampling: object) -> Prompt:
    """A prompt with an id that no other has."""
    number = next(_numbers)
    return Prompt(
        id=f"prompt-{number}",
        epoch=0,
        index=number,
        n=n,
        issued_version=issued_version,
        text="",
        token_ids=Int32Array(token_ids),
        sampling=Sampling(**{"max_tokens": 32, **sampling}),  # type: ignore[arg-type]
    )


def some_tokens(length: int, seed: int) -> list[int]:
    """Ordinary tokens of the test vocabulary."""
    return [4 + (seed * 31 + position * 7 + position * position) % 90 for position in range(length)]


class Asker:
    """The learner's and the reward service's ends of the streams."""

    def __init__(self, streams: Streams) -> None:
        self.streams = streams
        streams.ensure_groups()

    def issue(self, prompts: Sequence[Prompt]) -> None:
        entries = [(prompt.fields(), encode(prompt)) for prompt in prompts]
        assert self.streams.append_prompts(entries, learner_epoch=1 << 30) == len(prompts)

    def groups(self) -> list[Group]:
        """All groups on the rollouts stream."""
        return [decode_group(entry.payload) for entry in self.streams.after("rollouts", "0", 10_000)]

    def answered(self, prompts: Sequence[Prompt]) -> list[Group]:
        """The groups of these prompts that are there, in stream order."""
        wanted = {prompt.id for prompt in prompts}
        return [group for group in self.groups() if group.prompt.id in wanted]

    def answers(self, prompts: Sequence[Prompt], seconds: float = 60.0) -> list[Group]:
        """Issue, and wait for all groups."""
        self.issue(prompts)
        return self.collect(prompts, seconds)

    def collect(self, prompts: Sequence[Prompt], seconds: float = 60.0) -> list[Group]:
        """Wait for the groups of prompts already issued."""
        wait_until(lambda: len(self.answered(prompts)) >= len(prompts), seconds)
        groups = self.answered(prompts)
        assert len(groups) == len(prompts), "a prompt was answered twice"
        return groups


def logprob_gap(group: Group, models: dict[int, LlamaForCausalLM]) -> float:
    """Largest difference between the engine's logprobs and transformers', each token against the version
    that sampled it."""
    return max(_gap(group.prompt, completion, models) for completion in group.completions)


def _gap(prompt: Prompt, completion: Completion, models: dict[int, LlamaForCausalLM]) -> float:
    tokens = [*prompt.token_ids, *completion.token_ids]
    start, worst = len(prompt.token_ids), 0.0
    for span in completion.version_spans:
        with torch.no_grad():
            logits = models[span.version](torch.tensor([tokens])).logits[
                0, start - 1 : start - 1 + span.tokens
            ]
        seen = [tokens[:end] for end in range(start, start + span.tokens)]
        expected = torch.log_softmax(_as_sampled(logits.double(), prompt.sampling, seen), dim=-1)
        sampled = torch.tensor(tokens[start : start + span.tokens])
        offset = start - len(prompt.token_ids)
        engine = torch.tensor(completion.logprobs[offset : offset + span.tokens])
        gap = (expected.gather(1, sampled[:, None])[:, 0] - engine).abs().max().item()
        worst = max(worst, gap if math.isfinite(gap) else math.inf)
        start += span.tokens
    assert start == len(tokens), "version spans do not cover the completion"
    return worst


def _as_sampled(logits: torch.Tensor, sampling: Sampling, seen: Sequence[Sequence[int]]) -> torch.Tensor:
    """Logits of the distribution that is sampled from.

    Args:
        logits: the model's. [T, V]
        seen: the tokens before each of these.
    """
    logits = logits.clone()
    for row, earlier in zip(logits, seen, strict=True):
        ids = torch.tensor(sorted(set(earlier)))
        penalty = torch.full_like(row[ids], sampling.repetition_penalty)
        row[ids] *= torch.where(row[ids] < 0, penalty, 1 / penalty)
    if sampling.temperature:
        logits = logits / sampling.temperature
    chances = logits.softmax(dim=-1)
    logits = logits.masked_fill(chances < sampling.min_p * chances.amax(dim=-1, keepdim=True), -math.inf)
    if sampling.top_k:
        least = logits.topk(sampling.top_k).values[:, -1:]
        logits = logits.masked_fill(logits < least, -math.inf)
    if sampling.top_p < 1:
        ordered, order = logits.sort(dim=-1, descending=True)
        before = ordered.softmax(dim=-1).cumsum(dim=-1) - ordered.softmax(dim=-1)
        kept = torch.zeros_like(logits, dtype=torch.bool).scatter(1, order, before < sampling.top_p)
        logits = logits.masked_fill(~kept, -math.inf)
    return logits
