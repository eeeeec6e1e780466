from dataclasses import replace
from pathlib import Path

import pytest
import torch

from services.learner.flops import known_peak, update_flops
from services.learner.models.actor_critic import ActorCritic
from tests.learner.samples import ALONE, load_models, save_tiny_llama


def test_flops_count_every_pass_over_every_parameter(tmp_path: Path) -> None:
    models = load_models(save_tiny_llama(tmp_path), ALONE)
    assert isinstance(models.critic, torch.nn.Module) and models.reference is not None
    policy, critic = (sum(p.numel() for p in m.parameters()) for m in (models.policy, models.critic))
    forward, training = 20 * (2 * policy + critic), 180 * (policy + critic)

    def flops(models: ActorCritic, recomputes: bool = True, trains_policy: bool = True) -> float:
        return update_flops(models, 10, 30, recomputes=recomputes, trains_policy=trains_policy)

    assert flops(models) == forward + training
    assert flops(models, trains_policy=False) == forward + 180 * critic
    alone = replace(models, reference=None, critic=None, critic_optimizer=None)
    assert flops(alone) == 200 * policy
    assert flops(alone, recomputes=False) == 180 * policy


@pytest.mark.parametrize(
    ("name", "peak"), [("NVIDIA H100 80GB HBM3", 989), ("NVIDIA A100-SXM4-40GB", 312), ("Another", None)]
)
def test_the_peak_is_known_by_the_name_of_the_device(
    monkeypatch: pytest.MonkeyPatch, name: str, peak: float | None
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert known_peak(torch.device("cuda", 0)) == peak
    assert known_peak(torch.device("cpu")) is None
