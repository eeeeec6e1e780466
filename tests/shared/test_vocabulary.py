"""Tokenizers by their tokens, in whichever way a file holds them."""

import json
from pathlib import Path
from typing import Any

import pytest

from shared.vocabulary import vocabulary_digest


def digest(folder: Path, known: Any) -> str | None:
    (folder / "tokenizer.json").write_text(json.dumps(known))
    return vocabulary_digest(folder)


def test_the_same_tokens_have_the_same_digest_however_they_are_saved(tmp_path: Path) -> None:
    words = {"a": 0, "ü": 1, "</s>": 2}
    added = [{"id": 2, "content": "</s>", "special": True}]
    first = digest(
        tmp_path, {"model": {"type": "BPE", "vocab": words, "merges": ["a b"]}, "added_tokens": added}
    )
    turned = dict(reversed(words.items()))
    assert first == digest(tmp_path, {"version": "2", "model": {"vocab": turned, "merges": [["a", "b"]]}})
    pieces = [["a", -1.5], ["ü", -2.0], ["</s>", 0.0]]
    assert first == digest(tmp_path, {"added_tokens": None, "model": {"type": "Unigram", "vocab": pieces}})


@pytest.mark.parametrize("words", [{"a": 1, "ü": 0}, {"a": 0, "u": 1}, {"a": 0, "ü": 1, "b": 2}])
def test_other_tokens_have_another(tmp_path: Path, words: dict[str, int]) -> None:
    before = digest(tmp_path, {"model": {"vocab": {"a": 0, "ü": 1}}})
    assert before and before != digest(tmp_path, {"model": {"vocab": words}})


def test_a_model_without_the_file_has_none_and_a_damaged_file_is_told(tmp_path: Path) -> None:
    assert vocabulary_digest(tmp_path) is None
    with pytest.raises(ValueError, match=r"tokenizer\.json cannot be read as a tokenizer"):
        digest(tmp_path, ["no", "tokenizer"])
