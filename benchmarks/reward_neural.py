"""A reward model for `benchmarks.reward`, texts of mixed lengths, and transformers alone as the bound."""

import random
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForSequenceClassification,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from shared.scoring import ScoreItem

POSITIONS = 1024
SPECIAL = ("<pad>", "<s>", "</s>")


def write_model(folder: Path, hidden: int, layers: int, vocabulary: int = 2048) -> Path:
    """A Llama that classifies, of random weights, with a tokenizer of one token per word."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=hidden * 8 // 3,
        num_hidden_layers=layers,
        num_attention_heads=max(1, hidden // 64),
        num_key_value_heads=max(1, hidden // 64),
        max_position_embeddings=POSITIONS,
        initializer_range=0.2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    config.num_labels = 1
    LlamaForSequenceClassification(config).save_pretrained(folder)
    words = [*SPECIAL, *(f"w{number}" for number in range(vocabulary - len(SPECIAL)))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, "<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        model_max_length=POSITIONS,
    ).save_pretrained(folder)
    return folder


def make_texts(count: int, median: int, seed: int = 0) -> list[ScoreItem]:
    """Items of lognormal lengths (sigma 0.8), from a quarter of the median to 4 times it, in tokens."""
    draw = random.Random(seed)
    items = []
    for place in range(count):
        length = min(max(int(median * draw.lognormvariate(0, 0.8)), median // 4), median * 4)
        words = " ".join(f"w{draw.randrange(2000)}" for _ in range(length))
        items.append(ScoreItem(id=str(place), response=words))
    return items


class Bare:
    """Transformers and nothing else: sorted, padded batches, or one text after the other."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
        self._model = LlamaForSequenceClassification.from_pretrained(folder).eval()

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self._model.parameters())

    def score(self, items: Sequence[ScoreItem], rows: int) -> list[float]:
        """In the order of the items. Batches have `rows` of like length, padded to the longest."""
        ids = self._tokenizer([item.response for item in items])["input_ids"]
        order = sorted(range(len(items)), key=lambda place: len(ids[place]))
        scores = [0.0] * len(items)
        with torch.inference_mode():
            for start in range(0, len(order), rows):
                places = order[start : start + rows]
                batch = self._tokenizer.pad(
                    {"input_ids": [ids[place] for place in places]}, return_tensors="pt"
                )
                logits = self._model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
                for place, score in zip(places, logits[:, 0].tolist(), strict=True):
                    scores[place] = score
        return scores
