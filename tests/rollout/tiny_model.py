"""A Llama of 200 thousand random weights with a character tokenizer, variations of its weights, and weights
that say what a test wants."""

import copy
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]
VOCABULARY = [*SPECIAL, *(chr(code) for code in range(32, 127)), ">\n"]
"""Characters, and one token of two."""


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


def reciting(model: LlamaForCausalLM, chains: Sequence[Sequence[str]]) -> LlamaForCausalLM:
    """A model with a tied head that after each token of a chain says the next one, almost surely; after the
    last one the second, so that a chain goes round without its beginning.

    The first MLP maps a token's own embedding, which is one-hot, to the next one's; all other weights are 0.
    """
    made = copy.deepcopy(model)
    layer, size = made.model.layers[0].mlp, len(VOCABULARY)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "norm" not in name:
                parameter.zero_()
        made.model.embed_tokens.weight[:, :size].fill_diagonal_(10.0)
        layer.gate_proj.weight[:size, :size].fill_diagonal_(1.0)
        layer.up_proj.weight[:size, :size].fill_diagonal_(1.0)
        for chain in chains:
            for token, following in zip(chain, [*chain[1:], chain[1]], strict=True):
                layer.down_proj.weight[VOCABULARY.index(following), VOCABULARY.index(token)] = 10.0
    return made
