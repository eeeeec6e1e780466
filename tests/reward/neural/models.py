"""Tiny reward models with random weights, written to folders as trainers write them."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
)

from services.reward.neural.config import NeuralConfig
from services.reward.neural.scorer import NeuralScorer
from shared.scoring import ScoreItem

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
"""The text ends with the end-of-text token, as most chat templates have it: the trap of pad == eos."""

SPECIAL = ["<pad>", "<s>", "</s>"]


def write_tokenizer(folder: Path, pad: str = "<pad>", template: str | None = TEMPLATE) -> None:
    """One token per byte, and three special ones."""
    words = SPECIAL + sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token=pad, model_max_length=512
    )
    fast.chat_template = template
    fast.save_pretrained(folder)


def llama(**changes: Any) -> LlamaConfig:
    settings: dict[str, Any] = {
        "vocab_size": 259,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.2,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "num_labels": 1,
    }
    return LlamaConfig(**{**settings, **changes})


CLASSES = {
    "sequence_classification": AutoModelForSequenceClassification,
    "token_classification": AutoModelForTokenClassification,
    "causal_lm": AutoModelForCausalLM,
}


def write_model(folder: Path, kind: str, config: PretrainedConfig | None = None, pad: str = "<pad>") -> Path:
    torch.manual_seed(7)
    CLASSES[kind].from_config(config or llama()).save_pretrained(folder)
    write_tokenizer(folder, pad)
    return folder


def write_colossalchat(folder: Path) -> Path:
    """As its booster saves `RewardModel`: the backbone under `model.`, the head under `value_head.`."""
    write_model(folder, "causal_lm")
    model = AutoModelForCausalLM.from_pretrained(folder)
    tensors = {f"model.{name}": tensor for name, tensor in model.model.state_dict().items()}
    save_file({**tensors, **linear("value_head", 3)}, folder / "model.safetensors")
    return folder


def linear(name: str, seed: int) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    layer = nn.Linear(32, 1)
    return {f"{name}.weight": layer.weight.detach(), f"{name}.bias": layer.bias.detach()}


def write_adapter(folder: Path, base: Path, kind: str, seed: int) -> Path:
    """A LoRA adapter with weights that are not zero; for classification with a head of its own."""
    from peft import LoraConfig, get_peft_model

    task = {"sequence_classification": "SEQ_CLS", "causal_lm": "CAUSAL_LM"}[kind]
    options = {"num_labels": 1} if task == "SEQ_CLS" else {}
    torch.manual_seed(seed)
    model = CLASSES[kind].from_pretrained(base, **options)
    peft = get_peft_model(model, LoraConfig(task_type=task, r=4, target_modules=["q_proj", "v_proj"]))
    for name, parameter in peft.named_parameters():
        if "lora_B" in name or "modules_to_save" in name:
            nn.init.normal_(parameter, std=0.2)
    peft.save_pretrained(str(folder))
    if task == "CAUSAL_LM":
        save_file(linear("v_head.summary", seed), folder / "value_head.safetensors")
    return folder


def scorer(path: Path, name: str = "rm", **settings: Any) -> NeuralScorer:
    config = NeuralConfig.model_validate({"path": path, "device": "cpu", "prompt_as": "text", **settings})
    return NeuralScorer(name, config)


def texts(*responses: str) -> list[ScoreItem]:
    return [ScoreItem(prompt="Q: ", response=response) for response in responses]


MIXED = texts("a", "ab" * 40, "", "é世\n", "x" * 200, "word " * 7, "</s>", "done</s>", "</s></s> more </s>")
"""Lengths far apart, and texts that end with the token that may also be padding."""


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
