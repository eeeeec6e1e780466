"""Reading users' prompt files, and the order in which prompts are issued."""

import json
from pathlib import Path
from typing import Any

import pytest
from jinja2 import TemplateError

from services.learner.data.prompts import PromptSource, load_dataset
from shared.experience import Sampling


class Letters:
    """One token per character, behind the two methods of a tokenizer that prompts need."""

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> str:
        return "".join(f"<{message['role']}>{message['content']}" for message in conversation) + "<assistant>"

    def encode(self, text: str, **kwargs: Any) -> list[int]:
        return [ord(letter) for letter in text]


def write(path: Path, *rows: Any) -> Path:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return path


def chat(content: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], **more}


def test_chat_rows_and_gsm8k_rows_are_read_as_published(tmp_path: Path) -> None:
    path = write(
        tmp_path / "p.jsonl",
        chat("2+2?", ground_truth="4", level=3),
        {"question": "Weng earns…?", "answer": "She earns\n#### 10"},
    )
    first, second = load_dataset(path, Letters(), 100).rows
    assert first.text == "<user>2+2?<assistant>"
    assert (first.ground_truth, first.metadata) == ("4", {"level": 3})
    assert second.text == "<user>Weng earns…?<assistant>"
    assert (second.ground_truth, second.metadata) == ("She earns\n#### 10", {})


def test_long_prompts_are_left_out_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", chat("short"), chat("x" * 500))
    dataset = load_dataset(path, Letters(), 100)
    assert (len(dataset.rows), dataset.too_long) == (1, 1)


def test_a_file_without_a_prompt_in_the_limit_is_refused_with_the_shortest_length(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", chat("x" * 500))
    with pytest.raises(ValueError, match=r"max_prompt_tokens=10; the shortest prompt has 517 tokens"):
        load_dataset(path, Letters(), 10)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"messages": [', "line 2"),
        ("[1, 2]", "must be a JSON object, not list"),
        ({"text": "hello"}, "needs 'messages' or 'question'; it has ['text']"),
        ({"messages": []}, "at least one message"),
        ({"messages": [{"role": "user"}]}, "text 'content'"),
        ({"messages": [{"role": "assistant", "content": "4"}]}, "must end with the user's"),
    ],
)
def test_a_broken_row_is_refused_with_its_line_number(tmp_path: Path, row: Any, message: str) -> None:
    path = write(tmp_path / "p.jsonl", chat("fine"), row)
    with pytest.raises(ValueError) as caught:
        load_dataset(path, Letters(), 100)
    assert "line 2" in str(caught.value) and message in str(caught.value)


def test_unicode_line_separators_inside_a_row_are_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps(chat("one\u2028two\u0085three"), ensure_ascii=False), encoding="utf-8")
    (row,) = load_dataset(path, Letters(), 100).rows
    assert row.text == "<user>one\u2028two\u0085three<assistant>"


def test_a_row_that_the_chat_template_refuses_is_named_by_its_line(tmp_path: Path) -> None:
    class Strict(Letters):
        def apply_chat_template(self, conversation: Any, **kwargs: Any) -> str:
            raise TemplateError("roles must alternate")

    with pytest.raises(ValueError, match="line 1: roles must alternate"):
        load_dataset(write(tmp_path / "p.jsonl", chat("hello")), Strict(), 100)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere\.jsonl cannot be read"):
        load_dataset(tmp_path / "nowhere.jsonl", Letters(), 100)


def source(rows: int, seed: int = 0, tmp_path: Path | None = None) -> PromptSource:
    assert tmp_path
    path = write(tmp_path / "p.jsonl", *(chat(f"question {number}") for number in range(rows)))
    dataset = load_dataset(path, Letters(), 100)
    return PromptSource("run", dataset.rows, seed, n=2, sampling=Sampling(max_tokens=8))


def test_every_pass_covers_all_rows_once_in_a_new_order(tmp_path: Path) -> None:
    prompts = source(10, tmp_path=tmp_path)
    first = [prompts.take(0) for _ in range(10)]
    second = [prompts.take(0) for _ in range(10)]
    assert sorted(p.index for p in first) == sorted(p.index for p in second) == list(range(10))
    assert [p.index for p in first] != [p.index for p in second]
    assert {p.epoch for p in first} == {0} and {p.epoch for p in second} == {1}
    assert len({p.id for p in first + second}) == 20


def test_the_order_depends_on_the_seed_and_a_position_resumes_it(tmp_path: Path) -> None:
    whole = source(10, seed=3, tmp_path=tmp_path)
    ids = [whole.take(0).id for _ in range(25)]
    resumed = source(10, seed=3, tmp_path=tmp_path)
    resumed.position = 13
    assert [resumed.take(0).id for _ in range(12)] == ids[13:]
    other = source(10, seed=4, tmp_path=tmp_path)
    assert [other.take(0).index for _ in range(10)] != [whole.take(0).index for _ in range(10)]
