"""Sequences packed into one row give what transformers gives for each alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    BloomForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    PreTrainedModel,
)

from services.learner.data.batch import ExperienceBatch, collate
from services.learner.models.critic import load_critic
from services.learner.models.packing import pack
from services.learner.models.policy import load_policy
from services.learner.models.scores import completion_values, final_values, score_completions
from tests.learner.models.test_models import random_critic, save_gpt2, save_qwen3
from tests.learner.samples import make_groups, save_tiny_llama


def save_untied_llama(path: Path) -> Path:
    return save_tiny_llama(path, tied=False)


@pytest.fixture(scope="module", params=[save_tiny_llama, save_untied_llama, save_gpt2, save_qwen3])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return request.param(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def batch() -> ExperienceBatch:
    return collate(make_groups(5, 3))


def plain(path: Path) -> PreTrainedModel:
    """The model as transformers runs it, with its own attention and masks."""
    return AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager").eval()


def logprobs_alone(model: PreTrainedModel, batch: ExperienceBatch, row: int) -> Tensor:
    ids = batch.input_ids[row, : batch.lengths[row]]
    first = int(batch.prompt_lengths[row])
    distribution = model(ids[None]).logits[0, first - 1 : -1].log_softmax(-1)
    return distribution.gather(1, ids[first:, None]).squeeze(1)


def gradients(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def test_a_row_holds_the_wanted_tokens_of_each_sequence_with_positions_of_its_own() -> None:
    packed = pack(torch.tensor([[5, 6, 7, 8], [1, 2, 0, 0], [9, 0, 0, 0]]), torch.tensor([3, 2, 0]))
    assert packed.input_ids.tolist() == [[5, 6, 7, 1, 2, 9]]
    assert packed.position_ids.tolist() == [[0, 1, 2, 0, 1, 0]]
    assert packed.bounds.tolist() == [0, 3, 5, 6] and packed.lengths == [3, 2, 1]


@torch.no_grad()
def test_logprobs_are_those_of_transformers_for_each_sequence_alone(
    path: Path, batch: ExperienceBatch
) -> None:
    together = score_completions(load_policy(path), batch, 1.0, "float32").logprobs
    for row in range(len(batch)):
        alone = logprobs_alone(plain(path), batch, row)
        torch.testing.assert_close(together[row, : len(alone)], alone, atol=1e-5, rtol=0)


@torch.no_grad()
def test_values_are_those_of_transformers_for_each_sequence_alone(path: Path, batch: ExperienceBatch) -> None:
    critic, model = random_critic(path), plain(path)
    together, final = completion_values(critic, batch, "float32"), final_values(critic, batch, "float32")
    for row in range(len(batch)):
        first, last = int(batch.prompt_lengths[row]), int(batch.lengths[row])
        hidden = model.base_model(batch.input_ids[row : row + 1, :last]).last_hidden_state[0]
        alone = critic.head.values(hidden)
        values = together[row, : last - first]
        torch.testing.assert_close(values, alone[first - 1 : -1], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(final[row], alone[-1], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_sequence_that_changes_leaves_the_others_as_they_were(path: Path, batch: ExperienceBatch) -> None:
    policy, critic = load_policy(path), random_critic(path)
    changed = 4
    ids = batch.input_ids.clone()
    ids[changed] = (ids[changed] + 1) % 23
    other = replace(batch, input_ids=ids)
    kept = torch.arange(len(batch)) != changed
    for before, after in (
        [score_completions(policy, each, 1.0, "float32").logprobs for each in (batch, other)],
        [completion_values(critic, each, "float32") for each in (batch, other)],
    ):
        torch.testing.assert_close(before[kept], after[kept], atol=1e-6, rtol=0)
        assert not torch.allclose(before[changed], after[changed], atol=1e-3)


def test_gradients_are_the_sum_of_those_of_each_sequence_alone_in_any_order(
    path: Path, batch: ExperienceBatch
) -> None:
    """Of a loss that is no plain sum of logprobs, so that each token counts by its own."""
    expected = plain(path)
    for row in range(len(batch)):
        logprobs_alone(expected, batch, row).square().sum().backward()
    for order in (list(range(len(batch))), list(reversed(range(len(batch))))):
        policy = load_policy(path)
        score_completions(policy, batch.rows(order), 1.0, "float32").logprobs.square().sum().backward()
        found = gradients(policy)
        assert found.keys() == gradients(expected).keys()
        for name, gradient in gradients(expected).items():
            torch.testing.assert_close(found[name], gradient, atol=2e-4, rtol=1e-4)


def test_prompts_of_one_token_and_completions_without_any_keep_their_place(path: Path) -> None:
    batch = collate(make_groups(2, 2))
    ones = replace(
        batch,
        prompt_lengths=torch.ones_like(batch.prompt_lengths),
        completion_mask=batch.completion_mask & (torch.arange(len(batch)) > 0)[:, None],
    )
    policy = load_policy(path)
    together = score_completions(policy, ones, 1.0, "float32").logprobs
    assert not together[0].any()
    for row in range(1, len(ones)):
        alone = logprobs_alone(plain(path), ones, row)
        torch.testing.assert_close(together[row, : len(alone)], alone, atol=1e-5, rtol=0)


def test_a_model_that_would_mix_the_sequences_is_refused(tmp_path: Path) -> None:
    mamba = MambaConfig(vocab_size=23, hidden_size=16, num_hidden_layers=1, state_size=4)
    MambaForCausalLM(mamba).save_pretrained(tmp_path / "state")
    bloom = BloomConfig(vocab_size=23, hidden_size=16, n_layer=1, n_head=2)
    BloomForCausalLM(bloom).save_pretrained(tmp_path / "own")
    for name in ("state", "own"):
        for load in (load_policy, load_critic):
            with pytest.raises(ValueError, match="cannot be trained side by side in one row"):
                load(tmp_path / name)


_SMALL: dict[str, Any] = {
    "vocab_size": 23,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "pad_token_id": None,
}


def test_a_model_that_changes_attention_scores_is_refused(tmp_path: Path) -> None:
    Gemma2ForCausalLM(Gemma2Config(**_SMALL)).save_pretrained(tmp_path / "softcap")
    GptOssForCausalLM(GptOssConfig(**_SMALL, num_local_experts=2)).save_pretrained(tmp_path / "sinks")
    for name in ("softcap", "sinks"):
        for load in (load_policy, load_critic):
            with pytest.raises(ValueError, match=f"has .*{name}.*would be wrong"):
                load(tmp_path / name)


def test_a_change_of_attention_scores_that_shows_only_in_the_call_is_refused_too(
    path: Path, batch: ExperienceBatch
) -> None:
    policy = load_policy(path)
    for change in ({"softcap": 30.0}, {"s_aux": torch.zeros(3)}, {"position_bias": torch.zeros(1)}):
        with pytest.raises(ValueError, match=f"has {next(iter(change))}"):
            policy(**pack(batch.input_ids, batch.lengths).arguments(), **change)
