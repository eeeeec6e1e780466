"""Faults of the seed systems that we must not have, one test each (ColossalChat's PPO, by number).

7 is in tests/learner/models/test_build.py (a resumed run keeps its reference); what else belongs to 8 in
tests/shared and tests/learner/test_options.py (a configuration that cannot work is refused with a sentence).
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from services.learner.algorithm.rewards import RunningMoments
from services.learner.algorithm.schedule import is_due
from services.learner.data.batch import collate
from services.learner.data.chat_template import load_chat_template
from services.learner.models.actor_critic import ActorCritic
from services.learner.models.scores import score_completions
from services.learner.targets import evaluate, final_scores, make_targets
from services.learner.train import update_seed
from tests.learner.samples import (
    ALONE,
    SETTINGS,
    changed,
    load_models,
    make_groups,
    run_update,
    save_tiny_llama,
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> ActorCritic:
    return load_models(save_tiny_llama(tmp_path_factory.mktemp("model")), ALONE)


def test_1_a_reward_reaches_ppo_once_and_unclamped() -> None:
    batch = collate(make_groups(2, 2))
    batch = replace(batch, rewards=torch.tensor([0.0, 1.0, 10.0, 20.0]))
    scores, _ = final_scores(batch, SETTINGS, RunningMoments())
    assert scores.tolist() == [0, 1, 10, 20]


def test_2_the_score_is_on_the_last_token_and_not_on_all(models: ActorCritic) -> None:
    batch = collate(make_groups(3, 2))
    config = changed(kl_coef=0.0, gamma=1.0, gae_lambda=1.0, whiten_advantages=False)
    targets = make_targets(batch, evaluate(models, batch, config), batch.rewards, config, 0.0, 0)
    expected = batch.rewards[:, None] * batch.completion_mask
    torch.testing.assert_close(targets.returns * batch.completion_mask, expected)


def test_3_values_belong_to_their_states_whatever_the_padding(models: ActorCritic) -> None:
    groups = make_groups(6, 1)
    batch = collate(groups)
    assert len(set(batch.prompt_lengths.tolist())) > 2, "prompts of several lengths"
    together = evaluate(models, batch, SETTINGS).old_values
    for row, group in enumerate(groups):
        alone = evaluate(models, collate([group]), SETTINGS).old_values[0]
        torch.testing.assert_close(together[row, : len(alone)], alone, atol=1e-5, rtol=0)


def test_4_logprobs_are_those_of_the_temperature_that_was_sampled_with(models: ActorCritic) -> None:
    group = make_groups(1, 1)[0]
    batch = collate([group])
    old = evaluate(models, batch, changed(temperature=0.7)).old_logprobs[0]
    with torch.no_grad():
        logits = models.policy(batch.input_ids).logits[0] / 0.7
    start = len(group.prompt.token_ids)
    for t, token in enumerate(group.completions[0].token_ids):
        assert float(old[t]) == pytest.approx(float(logits[start + t - 1].log_softmax(-1)[token]), abs=1e-5)


@pytest.mark.parametrize("every", [1, 2, 3, 4, 7, 100])
def test_5_and_6_what_is_due_every_so_many_steps_happens_for_every_parity(every: int) -> None:
    """ColossalChat tests `(step + 1) % interval` on a counter that may never hit it."""
    due = [step for step in range(1, 21) if is_due(step, every, steps=20)]
    assert due == sorted({*range(every, 21, every), 20})


def test_8_an_empty_list_of_stop_ids_is_none_at_all(tmp_path: Path) -> None:
    file = tmp_path / "template.json"
    file.write_text('{"chat_template": "{{ messages }}", "stop_ids": [], "end_of_assistant": ""}')
    template = load_chat_template(file)
    assert not template.stop_token_ids and not template.stop


def test_9_each_update_shuffles_anew_and_metrics_keep_their_digits(models: ActorCritic) -> None:
    """ColossalChat seeds every collection with 41 and rounds its metrics through float16."""
    batch = collate(make_groups(4, 3))
    with torch.no_grad():
        exact = score_completions(models.policy, batch, 1.0, "float32").logprobs
    metrics = run_update(models, batch, changed(minibatches=3), 0, seed=0)
    expected = -float(exact.double().sum()) / len(batch)
    assert metrics["objective/entropy"] == pytest.approx(expected, rel=1e-6)
    assert float(torch.tensor(metrics["objective/entropy"]).half()) != metrics["objective/entropy"]


def test_updates_of_neighbouring_runs_share_no_seed() -> None:
    seeds = {update_seed(run, step) for run in range(20) for step in range(200)}
    assert len(seeds) == 20 * 200
