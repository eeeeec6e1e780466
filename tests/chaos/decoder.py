"""A Llama in numpy: what the learner trains, read back from its safetensors and run without torch.

It starts in a moment and gives the same numbers each time, which is all that a stand-in for vLLM needs.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

Floats = NDArray[np.float32]


class Decoder:
    """The weights of a Llama with one key-value head per head (Touvron et al. 2023) and its forward pass."""

    def __init__(self, folder: Path, files: Sequence[Path]) -> None:
        """Shape from the model's folder, weights from `files`."""
        config = json.loads((folder / "config.json").read_text())
        self._weights = {name: tensor for path in files for name, tensor in load_file(path).items()}
        self._layers = int(config["num_hidden_layers"])
        self._heads = int(config["num_attention_heads"])
        self._eps = float(config["rms_norm_eps"])
        size = config["hidden_size"] // self._heads
        theta = float((config.get("rope_parameters") or config)["rope_theta"])
        inverse = theta ** (-np.arange(0, size, 2, dtype=np.float32) / size)
        angles = np.arange(config["max_position_embeddings"], dtype=np.float32)[:, None] * inverse
        angles = np.concatenate([angles, angles], axis=-1)
        self._cos, self._sin = np.cos(angles), np.sin(angles)

    def next_logits(self, token_ids: NDArray[np.int64]) -> Floats:
        """Logits of the token after each row. [B, T] -> [B, vocabulary]"""
        hidden = self._weights["model.embed_tokens.weight"][token_ids]
        for layer in range(self._layers):
            prefix = f"model.layers.{layer}."
            hidden = hidden + self._attention(self._norm(hidden, prefix + "input_layernorm"), prefix)
            hidden = hidden + self._mlp(self._norm(hidden, prefix + "post_attention_layernorm"), prefix)
        logits: Floats = self._linear(self._norm(hidden[:, -1], "model.norm"), "lm_head")
        return logits

    def _linear(self, x: Floats, name: str) -> Floats:
        return np.asarray(x @ self._weights[name + ".weight"].T)

    def _norm(self, x: Floats, name: str) -> Floats:
        scale = 1 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(self._eps))
        return np.asarray(x * scale * self._weights[name + ".weight"])

    def _attention(self, x: Floats, prefix: str) -> Floats:
        batch, length, size = x.shape

        def heads(name: str) -> Floats:
            projected = self._linear(x, f"{prefix}self_attn.{name}_proj")
            return projected.reshape(batch, length, self._heads, -1).transpose(0, 2, 1, 3)

        query, key, value = self._rotated(heads("q")), self._rotated(heads("k")), heads("v")
        scores = query @ key.transpose(0, 1, 3, 2) / np.float32(np.sqrt(query.shape[-1]))
        scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = (scores / scores.sum(axis=-1, keepdims=True)) @ value
        return self._linear(
            mixed.transpose(0, 2, 1, 3).reshape(batch, length, size), f"{prefix}self_attn.o_proj"
        )

    def _rotated(self, x: Floats) -> Floats:
        length, half = x.shape[2], x.shape[3] // 2
        turned = np.concatenate([-x[..., half:], x[..., :half]], axis=-1)
        return np.asarray(x * self._cos[:length] + turned * self._sin[:length])

    def _mlp(self, x: Floats, prefix: str) -> Floats:
        gate, up = self._linear(x, f"{prefix}mlp.gate_proj"), self._linear(x, f"{prefix}mlp.up_proj")
        return self._linear(gate / (1 + np.exp(-gate)) * up, f"{prefix}mlp.down_proj")
