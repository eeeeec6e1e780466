"""The contenders do the same work: they take the same steps, and none trains on other tokens."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from benchmarks import contenders
from benchmarks.contenders import Contender, Task
from benchmarks.workload import Spread, draw_lengths, make_batch, make_targets
from services.learner.data.batch import minibatches
from services.learner.models.policy import load_policy
from services.learner.models.scores import score_completions
from tests.learner.samples import ALONE, VOCABULARY, changed, save_tiny_llama

ROWS = 12


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    """Short sequences, so that they fit the tiny model."""
    path = save_tiny_llama(tmp_path_factory.mktemp("model"))
    batch = make_batch("demo", ROWS, VOCABULARY, seed=0)
    lengths = batch.completion_mask.sum(dim=1) % 9 + 1
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    batch = replace(
        batch,
        completion_mask=mask,
        prompt_lengths=batch.prompt_lengths % 7 + 2,
        rollout_logprobs=torch.zeros(mask.shape),
        token_versions=torch.zeros(mask.shape, dtype=torch.long),
    ).rows(range(ROWS))
    with torch.no_grad():
        old = score_completions(load_policy(path), batch, 1.0, "float32").logprobs
    return Task(
        path,
        batch,
        make_targets(batch, old, seed=0),
        minibatches(ROWS, 2, torch.Generator().manual_seed(0)),
        changed(advantage_estimator="reinforce_plus_plus", micro_batch_tokens=40),
        ALONE,
    )


@pytest.mark.parametrize(
    "contender",
    [contenders.learner, contenders.padded, contenders.like_lengths],
    ids=["learner", "padded", "like lengths"],
)
def test_contenders_with_the_learners_loss_take_the_same_steps(
    task: Task, contender: Callable[[Task], Contender], monkeypatch: pytest.MonkeyPatch
) -> None:
    policies = [load_policy(task.model), load_policy(task.model)]
    unused = iter(policies)
    monkeypatch.setattr(contenders, "load_policy", lambda path: next(unused))
    monkeypatch.setattr(contenders, "LEARNING_RATE", 1e-3)
    contenders.learner(task).epoch()
    contender(task).epoch()
    moved = False
    for one, other, start in zip(
        policies[0].parameters(), policies[1].parameters(), load_policy(task.model).parameters(), strict=True
    ):
        torch.testing.assert_close(one, other, atol=2e-4, rtol=0)
        moved |= not torch.equal(one, start)
    assert moved


def test_the_bare_loops_train_on_the_batchs_own_tokens(task: Task) -> None:
    whole = int(task.batch.lengths.sum())
    assert contenders.equal_lengths(task).tokens == whole
    longest = int(task.batch.lengths.max())
    assert whole - longest * len(task.minibatches) < contenders.recut(task).tokens <= whole
    contenders.equal_lengths(task).epoch()
    contenders.recut(task, "sdpa").epoch()


@pytest.mark.parametrize("spread", ["demo", "lognormal"])
def test_lengths_are_those_that_the_benchmark_names(spread: Spread) -> None:
    prompts, completions = draw_lengths(spread, 2000, torch.Generator().manual_seed(0))
    assert prompts.min() >= 24
    if spread == "lognormal":
        assert completions.min() == 10 and completions.max() == 512
        assert 80 < completions.float().median() < 100
    else:
        assert 44 < completions.float().mean() < 46
