"""The learning rates that the optimizers have at each step of a run."""

from pathlib import Path

import pytest

from services.learner.train import _set_learning_rates
from tests.learner.samples import ALONE, load_models, save_tiny_llama, settings_for


def test_policy_and_critic_rise_over_the_warm_up_and_fall_to_the_floor(tmp_path: Path) -> None:
    models = load_models(save_tiny_llama(tmp_path), ALONE)
    shape = {"steps": 11, "warmup_steps": 4, "lr_schedule": "linear", "final_lr_ratio": 0.2}
    config = settings_for(tmp_path, policy_lr=1e-3, critic_lr=1e-2, **shape).learner
    for step, share in ((0, 0.25), (3, 1 - 0.8 * 0.3), (10, 0.2)):
        told = _set_learning_rates(models, config, step)
        for name, model_name, full in (("lr", "policy", 1e-3), ("lr/critic", "critic", 1e-2)):
            assert told[name] == pytest.approx(full * share)
            optimizers = {part: optimizer for part, _, optimizer in models.optimizers()}
            rates = {group["lr"] for group in optimizers[model_name].param_groups}
            assert rates == {told[name]}


def test_by_default_the_rates_stay(tmp_path: Path) -> None:
    models = load_models(save_tiny_llama(tmp_path), ALONE)
    config = settings_for(tmp_path, policy_lr=1e-3, critic_lr=1e-2, steps=5).learner
    told = [_set_learning_rates(models, config, step) for step in range(5)]
    assert told == [{"lr": 1e-3, "lr/critic": 1e-2}] * 5
