"""What a critic can start from: reward models, and value heads as TRL and LLaMA-Factory save them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModel, AutoModelForSequenceClassification

from services.learner.data.batch import ExperienceBatch, collate
from services.learner.models.build import build
from services.learner.models.critic import Critic, load_critic
from services.learner.models.scores import completion_values, final_values
from services.learner.models.trunk import TrunkCritic
from tests.learner.models.test_models import save_gpt2, save_qwen3
from tests.learner.samples import ALONE, make_groups, save_tiny_llama, settings_for


@pytest.fixture(scope="module", params=[save_tiny_llama, save_gpt2, save_qwen3])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return request.param(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def batch() -> ExperienceBatch:
    return collate(make_groups(4, 2))


def save_reward_model(base: Path, folder: Path, labels: int = 1) -> Any:
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=labels, dtype=torch.float32)
    torch.manual_seed(2)
    torch.nn.init.normal_(model.score.weight)
    model.save_pretrained(folder)
    return model.eval()


HEAD = {"v_head.summary.weight": torch.linspace(-1, 1, 24)[None], "v_head.summary.bias": torch.tensor([0.25])}


@torch.no_grad()
def test_values_of_a_critic_from_a_reward_model_are_its_scores(
    path: Path, batch: ExperienceBatch, tmp_path: Path
) -> None:
    reward_model = save_reward_model(path, tmp_path)
    critic = load_critic(tmp_path)
    values = completion_values(critic, batch, "float32")
    last = final_values(critic, batch, "float32")
    for row in range(len(batch)):
        prompt, length = int(batch.prompt_lengths[row]), int(batch.lengths[row])
        scores = [
            float(reward_model(batch.input_ids[row : row + 1, :end]).logits)
            for end in range(prompt, length + 1)
        ]
        assert values[row, : length - prompt].tolist() == pytest.approx(scores[:-1], abs=1e-4)
        assert float(last[row]) == pytest.approx(scores[-1], abs=1e-4)
    assert values.any()


@torch.no_grad()
def test_a_value_head_beside_a_model_or_among_its_weights_is_used(
    path: Path, batch: ExperienceBatch, tmp_path: Path
) -> None:
    """`value_head.safetensors` is LLaMA-Factory's way, `v_head` in the model's own file TRL's."""
    model = AutoModel.from_pretrained(path, dtype=torch.float32)
    hidden = model(batch.input_ids[:1]).last_hidden_state[0]
    expected = hidden @ HEAD["v_head.summary.weight"][0] + 0.25
    start = int(batch.prompt_lengths[0]) - 1

    beside, within = tmp_path / "beside", tmp_path / "within"
    for folder in (beside, within):
        model.save_pretrained(folder)
    save_file(HEAD, beside / "value_head.safetensors")
    save_file(
        load_file(within / "model.safetensors") | HEAD,
        within / "model.safetensors",
        metadata={"format": "pt"},
    )
    for folder in (beside, within):
        values = completion_values(load_critic(folder), batch, "float32")[0]
        count = int(batch.completion_mask[0].sum())
        torch.testing.assert_close(values[:count], expected[start : start + count], atol=1e-4, rtol=0)


def save_colossalchat(path: Path, folder: Path) -> list[dict[str, Tensor]]:
    """The configuration of the backbone, and a critic's tensors in two halves, as ColossalChat names them:
    `model.*`, whatever the architecture calls its backbone, and `value_head.*`."""
    model = AutoModel.from_pretrained(path, dtype=torch.float32)
    model.config.save_pretrained(folder)
    tensors = {f"model.{name}": tensor.contiguous() for name, tensor in model.state_dict().items()}
    first = {name: tensors.pop(name) for name in sorted(tensors)[::2]}
    head = {name.replace("v_head.summary", "value_head"): tensor for name, tensor in HEAD.items()}
    return [first, tensors | head]


@torch.no_grad()
def expect_the_head(folder: Path, path: Path, batch: ExperienceBatch) -> None:
    """That the values of the critic in a folder are those of `HEAD` on the backbone at `path`."""
    hidden = AutoModel.from_pretrained(path, dtype=torch.float32)(batch.input_ids[:1]).last_hidden_state[0]
    expected = hidden @ HEAD["v_head.summary.weight"][0] + 0.25
    start, count = int(batch.prompt_lengths[0]) - 1, int(batch.completion_mask[0].sum())
    values = completion_values(load_critic(folder), batch, "float32")[0]
    torch.testing.assert_close(values[:count], expected[start : start + count], atol=1e-4, rtol=0)


def test_a_critic_of_colossalchat_keeps_its_backbone_and_its_value_head(
    path: Path, batch: ExperienceBatch, tmp_path: Path
) -> None:
    files = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    index: dict[str, str] = {}
    for file, part in zip(files, save_colossalchat(path, tmp_path), strict=True):
        save_file(part, tmp_path / file, metadata={"format": "pt"})
        index |= dict.fromkeys(part, file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    expect_the_head(tmp_path, path, batch)
    shared = build(settings_for(path, critic={"trunk": "policy", "path": tmp_path}), ALONE, None)
    assert isinstance(shared.critic, TrunkCritic)
    assert torch.equal(shared.critic.head.weight, HEAD["v_head.summary.weight"])


def test_a_pickled_critic_of_colossalchat_keeps_both_when_it_is_converted_as_told(
    llama: Path, batch: ExperienceBatch, tmp_path: Path
) -> None:
    for number, part in enumerate(save_colossalchat(llama, tmp_path)):
        torch.save(part, tmp_path / f"pytorch_model-{number}.bin")
    with pytest.raises(
        ValueError, match=r"save_file\(\{k: v\.clone\(\) for f in glob\('pytorch_model\*\.bin'\)"
    ):
        load_critic(tmp_path)
    files = sorted(tmp_path.glob("pytorch_model*.bin"))
    tensors = {k: v.clone() for f in files for k, v in torch.load(f, weights_only=True).items()}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    expect_the_head(tmp_path, llama, batch)


def test_a_backbone_with_weights_missing_is_refused_and_not_filled_with_random_ones(
    llama: Path, tmp_path: Path
) -> None:
    AutoModel.from_pretrained(llama).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    kept = {name: tensor for name, tensor in load_file(file).items() if "layers.1.mlp" not in name}
    save_file(kept, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"as a critic's backbone: its weights lack layers\.1\.mlp"):
        load_critic(tmp_path)


@torch.no_grad()
def test_a_reward_adapter_with_its_value_head_makes_a_critic(
    llama: Path, batch: ExperienceBatch, tmp_path: Path
) -> None:
    """As LLaMA-Factory saves a reward model trained with LoRA."""
    model = AutoModel.from_pretrained(llama, dtype=torch.float32)
    adapted: Any = get_peft_model(
        model, LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "down_proj"])
    )
    torch.manual_seed(3)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    adapted.save_pretrained(tmp_path)
    state = load_file(tmp_path / "adapter_model.safetensors")
    renamed = {k.replace("base_model.model.", "base_model.model.model."): v for k, v in state.items()}
    save_file(renamed, tmp_path / "adapter_model.safetensors")  # it was trained on the causal model
    save_file(HEAD, tmp_path / "value_head.safetensors")

    models = build(settings_for(llama, critic_lora={"adapters": [tmp_path]}), ALONE, None)
    assert isinstance(models.critic, Critic)
    values = completion_values(models.critic, batch, "float32")[0]
    hidden = adapted(batch.input_ids[:1]).last_hidden_state[0]
    expected = hidden @ HEAD["v_head.summary.weight"][0] + 0.25
    start, count = int(batch.prompt_lengths[0]) - 1, int(batch.completion_mask[0].sum())
    torch.testing.assert_close(values[:count], expected[start : start + count], atol=1e-4, rtol=0)


def test_pickled_weights_are_refused_with_a_remedy(llama: Path, tmp_path: Path) -> None:
    model = AutoModel.from_pretrained(llama)
    model.save_pretrained(tmp_path)
    (tmp_path / "value_head.bin").write_bytes(b"anything")
    with pytest.raises(ValueError, match=r"value_head\.bin is a pickle, which is never loaded\. Convert"):
        load_critic(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"\.bin files are pickles and are never loaded, convert them"):
        load_critic(tmp_path)


def test_a_model_with_several_labels_or_without_its_head_is_no_reward_model(
    llama: Path, tmp_path: Path
) -> None:
    save_reward_model(llama, tmp_path / "three", labels=3)
    with pytest.raises(ValueError, match="one value for each state"):
        load_critic(tmp_path / "three")
    save_reward_model(llama, tmp_path / "headless")
    file = tmp_path / "headless" / "model.safetensors"
    save_file(
        {k: v for k, v in load_file(file).items() if k != "score.weight"}, file, metadata={"format": "pt"}
    )
    with pytest.raises(ValueError, match="is no reward model that values can start from"):
        load_critic(tmp_path / "headless")


def test_a_head_of_another_size_is_refused(llama: Path, tmp_path: Path) -> None:
    AutoModel.from_pretrained(llama).save_pretrained(tmp_path)
    save_file({"v_head.summary.weight": torch.zeros(1, 8)}, tmp_path / "value_head.safetensors")
    with pytest.raises(ValueError, match=r"has shape \(1, 8\), the critic's trunk needs \(1, 24\)"):
        load_critic(tmp_path)
