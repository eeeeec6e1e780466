"""Rows for the ptx loss: what is taught in each, and in which order they come."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.arithmetic.tokenizer import build_tokenizer
from services.learner.config.data import DatasetConfig
from services.learner.data.supervised import PtxRow, load_ptx, sample
from tests.learner.data.letters import END, Letters, chat, write

ANSWERED = {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]}


def load(path: Path, max_tokens: int = 200, tokenizer: Any = None, **config: Any) -> list[PtxRow]:
    return load_ptx(DatasetConfig(path=path, **config), tokenizer or Letters(), max_tokens)


def shown(row: PtxRow) -> str:
    """The text, what is taught in brackets, the end of text as a bar."""
    parts, inside = "", False
    for token, taught in zip(row.token_ids, row.loss_mask, strict=True):
        parts += "[" * (taught and not inside) + "]" * (inside and not taught)
        parts += {END: "|", 1: "^"}.get(token, chr(token))
        inside = taught
    return parts + "]" * inside


@pytest.mark.parametrize(
    ("row", "taught"),
    [
        (ANSWERED, "<user>2+2?.<assistant>[4.]"),
        ({"question": "2+2?", "answer": "4"}, "<user>2+2?.<assistant>[4.]"),
        ({"instruction": "Add", "input": "2+2", "output": "4"}, "<user>Add\n2+2.<assistant>[4.]"),
        (
            {
                "conversations": [
                    {"from": "human", "value": "2+2?"},
                    {"from": "gpt", "value": "4"},
                    {"from": "human", "value": "3+3?"},
                    {"from": "gpt", "value": "6"},
                ],
                "system": "Add.",
            },
            "<system>Add..<user>2+2?.<assistant>[4.]<user>3+3?.<assistant>[6.]",
        ),
        ({"text": "Once upon"}, "[^Once upon|]"),
    ],
)
def test_the_assistants_words_are_taught_and_nothing_else(tmp_path: Path, row: Any, taught: str) -> None:
    (loaded,) = load(write(tmp_path / "p.jsonl", row))
    assert shown(loaded) == taught


def test_a_plain_prompt_with_an_answer_ends_after_it(tmp_path: Path) -> None:
    (row,) = load(write(tmp_path / "p.jsonl", {"question": "2+2=", "answer": "4"}), plain=True)
    assert shown(row) == "^2+2=[4|]"


def test_a_turn_that_the_template_renders_otherwise_later_is_context_only(tmp_path: Path) -> None:
    class Forgetful(Letters):
        """Shows thoughts in the last message only, as Qwen3's template does."""

        def apply_chat_template(self, conversation: Any, **kwargs: Any) -> str:
            kept = [{**m, "content": m["content"].split("</think>")[-1]} for m in conversation[:-1]]
            return super().apply_chat_template([*kept, conversation[-1]], **kwargs)

    talk = [*ANSWERED["messages"], *ANSWERED["messages"]]
    thought = [{**m, "content": f"hm</think>{m['content']}"} if m["role"] == "assistant" else m for m in talk]
    (row,) = load(write(tmp_path / "p.jsonl", {"messages": thought}), tokenizer=Forgetful())
    assert shown(row) == "<user>2+2?.<assistant>4.<user>2+2?.<assistant>[hm</think>4.]"


def test_the_end_of_text_of_a_real_tokenizer_is_taught(tmp_path: Path) -> None:
    tokenizer = build_tokenizer(64)
    (row,) = load(write(tmp_path / "p.jsonl", ANSWERED), tokenizer=tokenizer)
    taught = [token for token, kept in zip(row.token_ids, row.loss_mask, strict=True) if kept]
    assert tokenizer.decode(list(row.token_ids)) == "<s><|user|>2+2?<|assistant|>4</s>"
    assert tokenizer.decode(taught) == "4</s>" and taught[-1] == tokenizer.eos_token_id


def test_long_rows_are_left_out_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "p.jsonl", ANSWERED, {"text": "x" * 300})
    with caplog.at_level("INFO"):
        assert len(load(path)) == 1
    assert "p: 1 rows, 1 left out as too long" in caplog.text
    with pytest.raises(ValueError, match=r"p\.jsonl: none of its 2 rows is within 3 tokens"):
        load(path, max_tokens=3)


def test_a_row_without_an_answer_is_refused_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", ANSWERED, chat("2+2?"))
    with pytest.raises(ValueError, match=r"p\.jsonl, line 2: it has no answer of the assistant to learn"):
        load(path)


def test_a_template_that_renders_an_answer_apart_from_its_prompt_is_refused(tmp_path: Path) -> None:
    class Reversed(Letters):
        def apply_chat_template(self, conversation: Any, **kwargs: Any) -> str:
            return super().apply_chat_template(conversation[::-1], **kwargs)

    with pytest.raises(ValueError, match="line 1: the chat template does not render the last answer"):
        load(write(tmp_path / "p.jsonl", ANSWERED), tokenizer=Reversed())


def test_an_argument_reaches_the_template(tmp_path: Path) -> None:
    class Thinking(Letters):
        def apply_chat_template(self, conversation: Any, **kwargs: Any) -> str:
            return kwargs["effort"] + ":" + super().apply_chat_template(conversation, **kwargs)

    config = DatasetConfig(path=write(tmp_path / "p.jsonl", ANSWERED))
    (row,) = load_ptx(config, Thinking(), 200, None, {"effort": "low"})
    assert shown(row) == "low:<user>2+2?.<assistant>[4.]"


@given(count=st.integers(1, 20), size=st.integers(1, 30), seed=st.integers(0, 9))
def test_the_steps_walk_through_all_rows_before_any_comes_again(count: int, size: int, seed: int) -> None:
    taken = [index for step in range(6) for index in sample(count, size, seed, step)]
    assert len(taken) == 6 * size
    for start in range(0, len(taken), count):
        a_pass = taken[start : start + count]
        assert len(set(a_pass)) == len(a_pass)


def test_a_step_depends_on_nothing_but_seed_and_number() -> None:
    assert sample(100, 8, seed=1, step=7) == sample(100, 8, seed=1, step=7)
    assert sample(100, 8, seed=1, step=7) != sample(100, 8, seed=2, step=7)
    assert sample(100, 8, seed=1, step=7) != sample(100, 8, seed=1, step=8)
