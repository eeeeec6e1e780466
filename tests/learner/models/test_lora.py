"""Low-rank adapters: what learns, what is published, what the reference is, and peft's own view of it all."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig as PeftConfig
from peft import PeftModel, get_peft_model
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from services.learner.data.batch import ExperienceBatch, collate
from services.learner.distributed import full_state
from services.learner.models.actor_critic import ActorCritic
from services.learner.models.build import build
from services.learner.models.policy import load_policy
from services.learner.models.scores import score_completions
from services.learner.models.snapshot import Snapshot, policy_weights
from tests.learner.models.test_models import save_gpt2
from tests.learner.samples import (
    ALONE,
    make_groups,
    randomise_adapters,
    save_tiny_llama,
    settings_for,
    train_for,
)

LORA = {"rank": 3, "alpha": 6}


@pytest.fixture(scope="module", params=[save_tiny_llama, save_gpt2])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return request.param(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def batch() -> ExperienceBatch:
    return collate(make_groups(4, 2))


def built(path: Path, **learner: object) -> ActorCritic:
    return build(settings_for(path, **{"lora": LORA, **learner}), ALONE, None)


def save_with_peft(base: Path, folder: Path, seed: int = 0, **options: Any) -> Path:
    """An adapter that peft itself made, random in both its halves."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    config = PeftConfig(**{"r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "up_proj"], **options})
    adapted: Any = get_peft_model(model, config)
    torch.manual_seed(seed)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    adapted.save_pretrained(folder)
    return folder


def logprobs(model: PreTrainedModel, batch: ExperienceBatch) -> Tensor:
    with torch.no_grad():
        return score_completions(model, batch, 1.0, "float32").logprobs


def reference_of(models: ActorCritic, batch: ExperienceBatch) -> Tensor:
    with torch.no_grad():
        found = models.reference_logprobs(batch, 1.0, "float32")
    assert found is not None
    return found


def deltas(models: ActorCritic) -> dict[str, Tensor]:
    """`B A` times 2, the scale of `LORA`, computed here and in float64."""
    state = full_state(models.policy)
    found = {}
    for name in state:
        if ".lora_A.default." in name:
            a, b = state[name].double(), state[name.replace("lora_A", "lora_B")].double()
            found[name.replace(".lora_A.default", "")] = 2 * b @ a
    return found


def test_two_publishes_are_each_the_base_plus_the_delta_of_now(path: Path) -> None:
    """ColossalChat's detached trainer adds delta upon delta when adapters are sent more than once."""
    base = full_state(load_policy(path))
    models = built(path)
    published = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        with torch.no_grad():
            for name, parameter in models.policy.named_parameters():
                if "lora_" in name:
                    parameter.normal_(std=0.2)
        before = {name: tensor.clone() for name, tensor in full_state(models.policy).items()}
        published.append(policy_weights(models))
        assert published[-1].keys() == base.keys()
        expected = deltas(models)
        assert expected
        for name, tensor in published[-1].items():
            delta = expected.get(name, torch.zeros(()))
            if (name in expected and delta.shape != tensor.shape) or ("c_" in name and name in expected):
                delta = delta.T  # GPT-2 keeps its matrices the other way round
            torch.testing.assert_close(tensor.double(), base[name].double() + delta, atol=1e-6, rtol=0)
        after = full_state(models.policy)
        assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert not all(torch.equal(published[0][name], published[1][name]) for name in base)


def test_what_is_published_says_what_the_adapted_policy_says(path: Path, batch: ExperienceBatch) -> None:
    models, plain = built(path), load_policy(path)
    randomise_adapters(models)
    plain.load_state_dict(policy_weights(models), strict=False)
    adapted = logprobs(models.policy, batch)
    torch.testing.assert_close(logprobs(plain, batch), adapted, atol=1e-4, rtol=0)
    assert not torch.allclose(logprobs(load_policy(path), batch), adapted, atol=1e-2)


def test_only_adapters_and_the_head_of_an_adapted_critic_learn(llama: Path) -> None:
    models = built(llama, critic_lora=LORA)
    policy, critic = full_state(models.policy), full_state(models.critic)  # type: ignore[arg-type]
    train_for(models, settings_for(llama, lora=LORA).learner, 0, 2)
    for before, model in ((policy, models.policy), (critic, models.critic)):
        after = full_state(model)  # type: ignore[arg-type]
        moved = {name for name in before if not torch.equal(before[name], after[name])}
        assert moved and all("lora_" in name or name.startswith("head.") for name in moved), moved
    assert {id(p) for g in models.policy_optimizer.param_groups for p in g["params"]} == {
        id(p) for n, p in models.policy.named_parameters() if "lora_" in n
    }


def test_without_a_start_adapter_the_reference_is_the_base(path: Path, batch: ExperienceBatch) -> None:
    models = built(path)
    base = logprobs(load_policy(path), batch)
    assert torch.equal(logprobs(models.policy, batch), base), "a new adapter changes nothing"
    randomise_adapters(models)
    assert torch.equal(reference_of(models, batch), base)
    assert not torch.allclose(logprobs(models.policy, batch), base, atol=1e-2), "adapters are on again"


def test_training_goes_on_after_the_policy_acted_as_its_reference(llama: Path) -> None:
    models = built(llama)
    trainable = {n for n, p in models.policy.named_parameters() if p.requires_grad}
    metrics = train_for(models, settings_for(llama, lora=LORA).learner, 0, 2)
    assert metrics["grad_norm/policy"] > 0 and metrics["objective/kl"] != 0
    assert trainable == {n for n, p in models.policy.named_parameters() if p.requires_grad}


def test_with_a_start_adapter_the_reference_is_the_base_with_it(
    llama: Path, batch: ExperienceBatch, tmp_path: Path
) -> None:
    adapter = save_with_peft(llama, tmp_path / "adapter")
    theirs: Any = PeftModel.from_pretrained(load_policy(llama), adapter).eval()
    start = logprobs(theirs.base_model.model, batch)
    models = built(llama, lora={"adapters": [adapter]})
    torch.testing.assert_close(logprobs(models.policy, batch), start, atol=1e-5, rtol=0)
    assert not torch.allclose(logprobs(load_policy(llama), batch), start, atol=1e-2)
    randomise_adapters(models)
    torch.testing.assert_close(reference_of(models, batch), start, atol=1e-5, rtol=0)
    assert not torch.allclose(logprobs(models.policy, batch), start, atol=1e-2)


def test_earlier_adapters_are_merged_and_a_new_one_starts_from_them(
    llama: Path, batch: ExperienceBatch, tmp_path: Path
) -> None:
    first = save_with_peft(llama, tmp_path / "first", seed=1)
    second = save_with_peft(llama, tmp_path / "second", seed=2, use_rslora=True)
    merged: Any = load_policy(llama)
    for folder in (first, second):
        merged = PeftModel.from_pretrained(merged, folder).merge_and_unload()
    expected = logprobs(merged, batch)
    models = built(llama, lora={"adapters": [first, second], "new_adapter": True})
    torch.testing.assert_close(logprobs(models.policy, batch), expected, atol=1e-4, rtol=0)
    randomise_adapters(models)
    torch.testing.assert_close(reference_of(models, batch), expected, atol=1e-4, rtol=0)
    continued = built(llama, lora={"adapters": [first, second]})
    torch.testing.assert_close(logprobs(continued.policy, batch), expected, atol=1e-4, rtol=0)
    layers: list[Any] = [m for m in continued.policy.modules() if hasattr(m, "base_layer")]
    assert layers and all(m.scaling["default"] == pytest.approx(4 / 2**0.5) for m in layers)


def test_a_snapshot_holds_a_merged_model_and_an_adapter_that_peft_loads(
    path: Path, batch: ExperienceBatch, tmp_path: Path
) -> None:
    models = built(path)
    randomise_adapters(models)
    Snapshot.take(models).write(tmp_path)
    expected = logprobs(models.policy, batch)
    torch.testing.assert_close(logprobs(load_policy(tmp_path / "policy"), batch), expected, atol=1e-4, rtol=0)
    adapter = tmp_path / "policy_adapter"
    assert json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"] == str(path)
    theirs: Any = PeftModel.from_pretrained(load_policy(path), adapter).eval()
    torch.testing.assert_close(logprobs(theirs.base_model.model, batch), expected, atol=1e-5, rtol=0)
    assert not any("lora" in name for name in load_file(tmp_path / "policy" / "model.safetensors"))


def test_rank_stabilised_scaling_divides_by_the_root_of_the_rank(llama: Path) -> None:
    models = built(llama, lora={"rank": 4, "alpha": 6, "rslora": True, "target_modules": ["q_proj"]})
    layers: dict[str, Any] = {n: m for n, m in models.policy.named_modules() if hasattr(m, "base_layer")}
    assert len(layers) == 2 and all(name.endswith("q_proj") for name in layers)
    assert {layer.scaling["default"] for layer in layers.values()} == {3.0}


def test_dropout_of_an_adapter_acts_in_training_passes_only(llama: Path, batch: ExperienceBatch) -> None:
    models = built(llama, lora={**LORA, "dropout": 0.5})
    randomise_adapters(models)
    first, second = (score_completions(models.policy, batch, 1.0, "float32").logprobs for _ in range(2))
    assert not torch.allclose(first, second)
    assert torch.equal(logprobs(models.policy, batch), logprobs(models.policy, batch))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_modules": ["embed_tokens"]}, "only linear layers"),
        ({"target_modules": ["lm_head"]}, "not the output head"),
        ({"target_modules": ["no_such_layer"]}, "lora.target_modules do not fit LlamaForCausalLM"),
        ({"adapters": ["nowhere"]}, "nowhere holds no adapter"),
    ],
)
def test_what_cannot_be_adapted_is_refused(llama: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        built(llama, lora=options)


def test_an_adapter_of_another_kind_or_model_is_refused(llama: Path, tmp_path: Path) -> None:
    dora = save_with_peft(llama, tmp_path / "dora", use_dora=True)
    with pytest.raises(ValueError, match="more than plain LoRA"):
        built(llama, lora={"adapters": [dora]})
    other = save_with_peft(llama, tmp_path / "other")
    config = (other / "adapter_config.json").read_text()
    (other / "adapter_config.json").write_text(config.replace('"r": 2', '"r": 5'))
    with pytest.raises(ValueError, match=r"of shape \(2, 24\), expected \(5, 24\)"):
        built(llama, lora={"adapters": [other]})
    (other / "adapter_model.safetensors").rename(other / "adapter_model.bin")
    with pytest.raises(ValueError, match="is a pickle and never loaded"):
        built(llama, lora={"adapters": [other]})


def test_without_peft_the_error_says_what_to_install(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ValueError, match=r"pip install 'rollstream\[learner\]'"):
        built(llama)
    monkeypatch.undo()
    importlib.import_module("peft")
    built(llama)
