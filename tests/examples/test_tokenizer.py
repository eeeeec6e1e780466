from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from examples.arithmetic.tokenizer import ROLES, build_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = tmp_path_factory.mktemp("tokenizer")
    build_tokenizer(2048).save_pretrained(directory)
    return AutoTokenizer.from_pretrained(directory)


@pytest.mark.parametrize(
    "text",
    [
        "caf\u00e9 \u2013 \u201c\u00a35\u201d \u65e5\u672c \U0001f389",
        " two  spaces .\r\n\t,",
        "<0x41> \u0120\x00",
        "e\u0301",
    ],
)
def test_text_survives_the_way_to_ids_and_back(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(text=st.text())
@settings(deadline=None)
def test_any_unicode_text_survives(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_plain_english_takes_one_token_a_character(tokenizer: Any) -> None:
    text = "Tom has 14 pens, loses 9. How many?"
    assert len(tokenizer.encode(text)) == len(text)


def test_the_chat_template_is_in_the_checkpoint_and_renders_every_role(tokenizer: Any) -> None:
    messages = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "3+3?"},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<s><|system|>Be short.<|user|>2+2?<|assistant|>4</s><|user|>3+3?<|assistant|>"


def test_special_tokens_are_single_ids_and_vanish_on_decoding(tokenizer: Any) -> None:
    for token in (tokenizer.pad_token, tokenizer.bos_token, tokenizer.eos_token, *ROLES):
        ids = tokenizer.encode(token)
        assert len(ids) == 1
        assert tokenizer.decode([*ids, *tokenizer.encode("5")], skip_special_tokens=True) == "5"
