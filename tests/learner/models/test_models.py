from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from services.learner.data.batch import ExperienceBatch, collate
from services.learner.distributed import full_state
from services.learner.models.critic import Critic, load_critic, save_critic
from services.learner.models.policy import load_policy, load_reference
from services.learner.models.scores import completion_values, score_completions
from tests.learner.samples import VOCABULARY, make_groups, save_tiny_llama


def save_gpt2(path: Path) -> Path:
    """Learned absolute positions, tied embeddings, dropout in its configuration."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=24,
        n_layer=2,
        n_head=3,
        n_positions=64,
        initializer_range=0.3,
        bos_token_id=0,
        eos_token_id=1,
    )
    GPT2LMHeadModel(config).save_pretrained(path)
    return path


def save_qwen3(path: Path) -> Path:
    """Grouped key-value heads, a sliding window shorter than the sequences, untied embeddings."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=24,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
        tie_word_embeddings=False,
        use_sliding_window=True,
        sliding_window=4,
        max_window_layers=1,
        initializer_range=0.3,
    )
    Qwen3ForCausalLM(config).save_pretrained(path)
    return path


@pytest.fixture(scope="module", params=[save_tiny_llama, save_gpt2, save_qwen3])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return request.param(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def batch() -> ExperienceBatch:
    return collate(make_groups(4, 2))


def random_critic(path: Path) -> Critic:
    critic = load_critic(path)
    torch.manual_seed(1)
    torch.nn.init.normal_(critic.head.weight)
    return critic


def prefixes(batch: ExperienceBatch, row: int) -> list[torch.Tensor]:
    """What the model has read before each completion token of a row, unpadded and alone. [T] of [1, S]"""
    prompt, length = int(batch.prompt_lengths[row]), int(batch.lengths[row])
    return [batch.input_ids[row : row + 1, :end] for end in range(prompt, length)]


@torch.no_grad()
def test_logprobs_and_entropy_are_those_of_reading_each_prefix_alone(
    path: Path, batch: ExperienceBatch
) -> None:
    policy = load_policy(path)
    scores = score_completions(policy, batch, temperature=0.7, precision="float32")
    for row in range(len(batch)):
        for t, prefix in enumerate(prefixes(batch, row)):
            logits = policy(prefix).logits[0, -1].double() / 0.7
            token = batch.input_ids[row, prefix.shape[1]]
            distribution = torch.distributions.Categorical(logits=logits)
            assert float(scores.logprobs[row, t]) == pytest.approx(
                float(distribution.log_prob(token)), abs=1e-4
            )
            assert float(scores.entropy[row, t]) == pytest.approx(float(distribution.entropy()), abs=1e-4)
    assert not scores.logprobs[~batch.completion_mask].any()
    assert not scores.entropy[~batch.completion_mask].any()


@torch.no_grad()
def test_a_value_is_that_of_the_state_before_its_token(path: Path, batch: ExperienceBatch) -> None:
    """Prompts of differing length, which ColossalChat's critic was mis-aligned on."""
    critic = random_critic(path)
    values = completion_values(critic, batch, "float32")
    for row in range(len(batch)):
        for t, prefix in enumerate(prefixes(batch, row)):
            alone = critic.head(critic.backbone(prefix).last_hidden_state[0, -1])
            assert float(values[row, t]) == pytest.approx(float(alone), abs=1e-4)
    assert not values[~batch.completion_mask].any()


@torch.no_grad()
def test_what_stands_in_the_padding_and_who_shares_the_batch_do_not_matter(
    path: Path, batch: ExperienceBatch
) -> None:
    policy, critic = load_policy(path), random_critic(path)
    whole = score_completions(policy, batch, 1.0, "float32").logprobs
    values = completion_values(critic, batch, "float32")
    for row in range(len(batch)):
        alone = batch.rows([row])
        width = alone.completion_mask.shape[1]
        logprobs = score_completions(policy, alone, 1.0, "float32").logprobs
        torch.testing.assert_close(logprobs, whole[row : row + 1, :width], atol=1e-5, rtol=0)
        torch.testing.assert_close(
            completion_values(critic, alone, "float32"),
            values[row : row + 1, :width],
            atol=1e-5,
            rtol=0,
        )


def test_gradients_flow_through_logprobs_and_through_entropy_only_when_asked(
    batch: ExperienceBatch, tmp_path: Path
) -> None:
    policy = load_policy(save_tiny_llama(tmp_path))
    scores = score_completions(policy, batch, 1.0, "float32")
    assert scores.logprobs.requires_grad and not scores.entropy.requires_grad
    assert score_completions(policy, batch, 1.0, "float32", train_entropy=True).entropy.requires_grad


def test_a_batch_without_completion_tokens_gives_zero_gradients(path: Path, batch: ExperienceBatch) -> None:
    """A rank without rows must still run its part of every collective, backward ones too."""
    policy, critic, idle = load_policy(path), random_critic(path), batch.rows([])
    score_completions(policy, idle, 1.0, "float32").logprobs.sum().backward()
    completion_values(critic, idle, "float32").sum().backward()
    for model in (policy, critic):
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        assert gradients and not any(gradient.any() for gradient in gradients)


@torch.no_grad()
def test_bfloat16_stays_near_float32(path: Path, batch: ExperienceBatch) -> None:
    policy = load_policy(path)
    exact = score_completions(policy, batch, 1.0, "float32").logprobs
    rough = score_completions(policy, batch, 1.0, "bfloat16").logprobs
    assert rough.dtype == torch.float32
    assert 0 < float((exact - rough).abs().mean()) < 0.1


def test_dropout_is_off_so_that_two_passes_agree(path: Path, batch: ExperienceBatch) -> None:
    policy = load_policy(path)
    first, second = (score_completions(policy, batch, 1.0, "float32").logprobs for _ in range(2))
    assert torch.equal(first, second)


def test_the_reference_is_the_policy_frozen(path: Path, batch: ExperienceBatch) -> None:
    policy, reference = load_policy(path), load_reference(path)
    assert not any(p.requires_grad for p in reference.parameters())
    assert all(p.requires_grad for p in policy.parameters())
    scores = [score_completions(m, batch, 1.0, "float32").logprobs for m in (policy, reference)]
    assert torch.equal(*scores)


def test_a_load_critic_values_every_state_at_zero(path: Path, batch: ExperienceBatch) -> None:
    assert not completion_values(load_critic(path), batch, "float32").any()


def test_a_saved_critic_loads_as_it_was(path: Path, batch: ExperienceBatch, tmp_path: Path) -> None:
    critic = random_critic(path)
    with torch.no_grad():
        next(critic.backbone.parameters()).add_(0.01)
    save_critic(critic, full_state(critic), tmp_path)
    loaded = load_critic(tmp_path)
    assert torch.equal(
        completion_values(critic, batch, "float32"), completion_values(loaded, batch, "float32")
    )
    assert (tmp_path / "value_head.safetensors").is_file()


def test_a_saved_policy_is_a_plain_hugging_face_model(
    path: Path, batch: ExperienceBatch, tmp_path: Path
) -> None:
    policy: PreTrainedModel = load_policy(path)
    with torch.no_grad():
        next(policy.parameters()).add_(0.01)
    policy.save_pretrained(tmp_path, state_dict=full_state(policy))
    scores = [score_completions(m, batch, 1.0, "float32").logprobs for m in (policy, load_policy(tmp_path))]
    assert torch.equal(*scores)
