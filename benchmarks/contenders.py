"""Ways to train a policy on the same completions: epochs over a batch, one AdamW step a minibatch."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from services.learner import distributed
from services.learner.algorithm.losses import PolicyLoss, policy_loss
from services.learner.config.algorithm import AlgorithmConfig
from services.learner.data.batch import ExperienceBatch
from services.learner.distributed import World
from services.learner.minibatch import train_minibatch
from services.learner.models.actor_critic import ActorCritic, build_optimizer
from services.learner.models.policy import load_policy
from services.learner.targets import Targets

LEARNING_RATE = 1e-6


@dataclass(frozen=True)
class Task:
    """What all contenders are given."""

    model: Path
    batch: ExperienceBatch
    targets: Targets
    minibatches: list[list[int]]
    """Rows of each optimizer step."""
    config: AlgorithmConfig
    world: World


@dataclass(frozen=True)
class Contender:
    epoch: Callable[[], None]
    tokens: int
    """Prompt and completion tokens that one epoch trains on, padding not counted."""


def learner(task: Task) -> Contender:
    """The policy part of the learner itself: packed sequences, in passes of nearly equal size."""
    policy, optimizer = _policy(task)
    models = ActorCritic(policy, None, None, optimizer, None, task.world)

    def epoch() -> None:
        for rows in task.minibatches:
            train_minibatch(models, task.batch, task.targets, rows, task.config, 0.0, 0)

    return Contender(epoch, int(task.batch.lengths.sum()))


def recut(task: Task, attention: str | None = None) -> Contender:
    """The bound: a minibatch's tokens strung together and cut anew into rows of one length, so that there is
    neither padding nor a pass that is too small.

    The length is `sum(L^2) / sum(L)` over the true lengths `L`: then attention meets as many pairs of tokens
    as on the true sequences. The tokens left over, fewer than a row, are dropped and not counted.
    """
    steps = []
    for rows in task.minibatches:
        ids, wanted = (torch.cat(parts) for parts in zip(*_sequences(task.batch, rows), strict=True))
        lengths = task.batch.lengths[rows]
        width = round(int(lengths.square().sum()) / int(lengths.sum()))
        whole = len(ids) // width * width
        square = [flat[:whole].view(-1, width) for flat in (ids, wanted)]
        size = max(1, task.config.micro_batch_tokens // width)
        steps.append(list(zip(*(part.split(size) for part in square), strict=True)))
    return _bare(task, steps, attention)


def equal_lengths(task: Task) -> Contender:
    """The same sequences as they are, those of exactly one length together."""
    steps = []
    for rows in task.minibatches:
        by_length = sorted(rows, key=lambda row: int(task.batch.lengths[row]))
        passes = []
        for width, same in groupby(by_length, key=lambda row: int(task.batch.lengths[row])):
            ids, wanted = (
                torch.stack(parts) for parts in zip(*_sequences(task.batch, list(same)), strict=True)
            )
            size = max(1, task.config.micro_batch_tokens // width)
            passes += list(zip(ids.split(size), wanted.split(size), strict=True))
        steps.append(passes)
    return _bare(task, steps)


def padded(task: Task) -> Contender:
    """The padded way: every row as long as the longest of its minibatch, logits at all positions, the
    learner's loss. Passes hold as many padded tokens as the learner's hold tokens."""
    steps = []
    for rows in task.minibatches:
        width = int(task.batch.lengths[rows].max())
        size = max(1, task.config.micro_batch_tokens // width)
        steps.append([(part.tolist(), width) for part in torch.tensor(rows).split(size)])
    return _padded(task, steps, everywhere=True)


def like_lengths(task: Task) -> Contender:
    """Padding at its best: rows of like length share a pass and are padded to its longest, logits at
    completion tokens alone, the learner's loss."""
    steps = []
    for rows in task.minibatches:
        passes, left = [], sorted(rows, key=lambda row: -int(task.batch.lengths[row]))
        while left:
            width = int(task.batch.lengths[left[0]])
            size = max(1, task.config.micro_batch_tokens // width)
            passes.append((left[:size], width))
            left = left[size:]
        steps.append(passes)
    return _padded(task, steps, everywhere=False)


def _padded(task: Task, steps: Sequence[Sequence[tuple[list[int], int]]], everywhere: bool) -> Contender:
    """The learner's loss on padded passes.

    Args:
        steps: of each optimizer step the passes: rows, and the length they are padded to.
        everywhere: make logits for prompts and padding too, and choose from them afterwards.
    """
    policy, optimizer = _policy(task)
    config, batch = task.config, task.batch

    def epoch() -> None:
        for passes in steps:
            tokens = int(batch.completion_mask[[row for rows, _ in passes for row in rows]].sum())
            for rows, width in passes:
                ids, mask = batch.input_ids[rows, :width], batch.completion_mask[rows]
                target = task.targets.rows(rows, mask.shape[1])
                row, t = mask.nonzero(as_tuple=True)
                at = batch.prompt_lengths[rows][row] + t
                with _autocast(task):
                    states = policy.base_model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
                    output = policy.get_output_embeddings()
                    logits = output(states)[row, at - 1] if everywhere else output(states[row, at - 1])
                every = torch.log_softmax(logits.float() / config.temperature, dim=-1)
                chosen = every.gather(1, ids[row, at][:, None]).squeeze(1)
                logprobs = torch.zeros_like(target.advantages).masked_scatter(mask, chosen)
                (_loss(logprobs, target, mask, config).loss / tokens).backward()
            _step(policy, optimizer, config.max_grad_norm)

    return Contender(epoch, int(batch.lengths.sum()))


def _policy(task: Task) -> tuple[PreTrainedModel, torch.optim.Optimizer]:
    """A copy of the model for each contender, with the learner's optimizer."""
    policy = load_policy(task.model)
    distributed.shard(policy, task.world)
    return policy, build_optimizer(policy, LEARNING_RATE, weight_decay=0.0)


def _bare(
    task: Task, steps: Sequence[Sequence[tuple[Tensor, Tensor]]], attention: str | None = None
) -> Contender:
    """Forward, cross-entropy at the wanted positions, backward, AdamW, and nothing else.

    Args:
        steps: of each optimizer step the passes: token ids and where a completion token is. [B, S] each
        attention: one of transformers' own in place of the learner's.
    """
    policy, optimizer = _policy(task)
    if attention:
        policy.set_attn_implementation(attention)

    def epoch() -> None:
        for passes in steps:
            tokens = sum(int(wanted[:, 1:].sum()) for _, wanted in passes)
            for ids, wanted in passes:
                chosen = wanted[:, 1:]
                with _autocast(task):
                    hidden = policy.base_model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
                    logits = policy.get_output_embeddings()(hidden[chosen])
                loss = nn.functional.cross_entropy(logits.float(), ids[:, 1:][chosen], reduction="sum")
                (loss / tokens).backward()
            optimizer.step()
            optimizer.zero_grad()

    return Contender(epoch, sum(ids.numel() for passes in steps for ids, _ in passes))


def _sequences(batch: ExperienceBatch, rows: Sequence[int]) -> Iterable[tuple[Tensor, Tensor]]:
    """Each sequence without padding, and where its completion tokens are. [S] each"""
    for row in rows:
        length, prompt = int(batch.lengths[row]), int(batch.prompt_lengths[row])
        ids = batch.input_ids[row, :length]
        yield ids, torch.arange(length, device=ids.device) >= prompt


def _loss(logprobs: Tensor, target: Targets, mask: Tensor, config: AlgorithmConfig) -> PolicyLoss:
    return policy_loss(
        logprobs, target.old_logprobs, target.advantages, mask, config.clip_low, config.clip_high
    )


def _step(policy: nn.Module, optimizer: torch.optim.Optimizer, max_grad_norm: float) -> None:
    nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm)
    optimizer.step()
    optimizer.zero_grad()


def _autocast(task: Task) -> torch.autocast:
    kind = task.world.device.type
    return torch.autocast(kind, dtype=torch.bfloat16, enabled=task.config.precision == "bfloat16")
