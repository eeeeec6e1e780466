"""A Llama of 200 thousand random weights with a character tokenizer, and variations of its weights."""

import copy
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]
VOCABULARY = SPECIAL + [chr(code) for code in range(32, 127)]


def make_model(folder: Path, tied: bool, ends: bool = True) -> LlamaForCausalLM:
    """Write model and tokenizer to `folder`; return the model. Unless it `ends`, there is no stop token."""
    tokenizer = Tokenizer(models.WordLevel({t: i for i, t in enumerate(VOCABULARY)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>" if ends else None,
        unk_token="<unk>",
    )
    fast.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(VOCABULARY), hidden_size=128, intermediate_size=256, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=512,
            tie_word_embeddings=tied, initializer_range=0.1,
            bos_token_id=1, eos_token_id=2 if ends else None, pad_token_id=0,
        )
    )  # fmt: skip
    model.save_pretrained(folder)
    return model.eval()


def varied(model: LlamaForCausalLM, seed: int) -> LlamaForCausalLM:
    """The model with every weight moved: a later policy version."""
    moved = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in moved.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    return moved


def tensors_of(model: LlamaForCausalLM) -> dict[str, torch.Tensor]:
    """What a learner sends: every tensor once, a tied head left out."""
    tied = model.config.tie_word_embeddings
    return {name: tensor for name, tensor in model.state_dict().items()
            if not (tied and name == "lm_head.weight")}  # fmt: skip
