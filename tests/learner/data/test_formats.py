"""Every row format that users have, read to the same thing."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from services.learner.config.data import Columns, DatasetConfig, FormatName
from services.learner.data.dataset import Parsed, parse
from services.learner.data.formats import FORMATS, recognise

USER = {"role": "user", "content": "2+2?"}
ANSWER = {"role": "assistant", "content": "4"}
SYSTEM = {"role": "system", "content": "Be brief."}
MORE = {"role": "user", "content": "And 3+3?"}


def read(row: Any, **config: Any) -> Parsed:
    return parse(row, DatasetConfig(path=Path("p.jsonl"), **config))


@pytest.mark.parametrize(
    ("name", "row", "prompt", "ground_truth", "metadata"),
    [
        ("messages", {"messages": [USER], "ground_truth": "4", "level": 3}, [USER], "4", {"level": 3}),
        ("messages", {"messages": [SYSTEM, USER, ANSWER], "answer": 4}, [SYSTEM, USER], "4", {}),
        ("question", {"question": "2+2?", "answer": "so\n#### 4"}, [USER], "so\n#### 4", {}),
        ("question", {"question": "2+2?", "ground_truth": "4", "id": 7}, [USER], "4", {"id": 7}),
        (
            "colossalchat",
            {
                "messages": [
                    {"from": "system", "content": "Be brief."},
                    {"from": "user", "content": "2+2?"},
                    {"from": "assistant", "content": "4"},
                ],
                "gt_answer": "4",
                "category": "sums",
            },
            [SYSTEM, USER],
            "4",
            {"category": "sums"},
        ),
        ("colossalchat", {"messages": [USER, ANSWER, MORE], "gt_answer": 6}, [USER, ANSWER, MORE], "6", {}),
        ("messages", {"messages": [{"from": "user", "content": "2+2?"}]}, [USER], None, {}),
        ("alpaca", {"instruction": "2+2?", "input": "", "output": "4"}, [USER], None, {}),
        (
            "alpaca",
            {
                "instruction": "And",
                "input": "3+3?",
                "output": "6",
                "system": "Be brief.",
                "history": [["2+2?", "4"]],
            },
            [SYSTEM, USER, ANSWER, {"role": "user", "content": "And\n3+3?"}],
            None,
            {},
        ),
        (
            "sharegpt",
            {
                "conversations": [
                    {"from": "human", "value": "2+2?"},
                    {"from": "gpt", "value": "4"},
                    {"from": "human", "value": "And 3+3?"},
                    {"from": "gpt", "value": "6"},
                ],
                "system": "Be brief.",
            },
            [SYSTEM, USER, ANSWER, MORE],
            None,
            {},
        ),
        ("sharegpt", {"conversations": [{"from": "human", "value": "2+2?"}]}, [USER], None, {}),
        (
            "verl",
            {
                "data_source": "openai/gsm8k",
                "prompt": [USER],
                "ability": "math",
                "reward_model": {"style": "rule", "ground_truth": "4"},
                "extra_info": {"split": "train", "index": 0},
            },
            [USER],
            "4",
            {"data_source": "openai/gsm8k", "ability": "math", "extra_info": {"split": "train", "index": 0}},
        ),
        ("prompt", {"prompt": "2+2?", "answer": "4", "topic": None}, [USER], "4", {"topic": None}),
        ("prompt", {"prompt": [SYSTEM, USER], "solution": "4"}, [SYSTEM, USER], None, {"solution": "4"}),
        ("openrlhf", {"input": "2+2?", "label": "4"}, [USER], "4", {}),
    ],
)
def test_a_row_is_recognised_by_its_keys_and_read(
    name: FormatName, row: dict[str, Any], prompt: Any, ground_truth: str | None, metadata: dict[str, Any]
) -> None:
    before = json.dumps(row)
    assert recognise(row) == name
    for parsed in (read(row), read(row, format=name)):
        assert (parsed.prompt, parsed.ground_truth, parsed.metadata) == (prompt, ground_truth, metadata)
    assert json.dumps(row) == before


def test_every_format_can_be_named_in_the_config() -> None:
    assert set(get_args(FormatName)) == FORMATS.keys()


def test_tool_calls_and_what_tools_said_are_rendered_with_the_tools() -> None:
    tools = [{"name": "add", "parameters": {}}]
    call = {"name": "add", "arguments": {"a": 2, "b": 2}}
    parsed = read(
        {
            "conversations": [
                {"from": "human", "value": "2+2?"},
                {"from": "function_call", "value": json.dumps(call)},
                {"from": "observation", "value": "4"},
                {"from": "gpt", "value": "It is 4."},
            ],
            "tools": json.dumps(tools),
        }
    )
    assert isinstance(parsed.prompt, list)
    asked, called, observed = parsed.prompt
    assert asked == USER and observed == {"role": "tool", "content": "4"}
    assert called["tool_calls"] == [{"type": "function", "function": call}]
    assert parsed.tools == tools
    assert parsed.answer == {"role": "assistant", "content": "It is 4."}


def test_the_gold_answer_is_the_ground_truth_only_if_asked_for() -> None:
    alpaca = {"instruction": "2+2?", "output": "4"}
    talk = {"conversations": [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]}
    for row in (alpaca, talk, {"messages": [USER, ANSWER]}):
        assert read(row).ground_truth is None
        assert read(row, answer_as_ground_truth=True).ground_truth == "4"
    assert read({**talk, "ground_truth": "5"}, answer_as_ground_truth=True).ground_truth == "5"


def test_a_system_message_is_put_before_conversations_without_one() -> None:
    config = DatasetConfig(path=Path("p.jsonl"))
    assert parse({"messages": [USER]}, config, "Be brief.").prompt == [SYSTEM, USER]
    for row in ({"messages": [SYSTEM, USER]}, {"messages": [USER], "system": "Be brief."}):
        assert parse(row, config, "Be long.").prompt == [SYSTEM, USER]


def test_columns_of_any_name_can_be_mapped() -> None:
    row = {"q": "2+2?", "a": 4, "messages": "notes", "level": 1}
    parsed = read(row, columns=Columns(prompt="q", ground_truth="a"))
    assert (parsed.prompt, parsed.ground_truth) == ([USER], "4")
    assert parsed.metadata == {"messages": "notes", "level": 1}
    talk = {"turns": [USER], "who": "Be brief.", "gold": ["4", "four"]}
    parsed = read(talk, columns=Columns(messages="turns", system="who", ground_truth="gold"))
    assert (parsed.prompt, parsed.ground_truth) == ([SYSTEM, USER], '["4", "four"]')


def test_a_mapped_ground_truth_leaves_the_rest_to_recognition() -> None:
    parsed = read({"instruction": "2+2?", "output": "4"}, columns=Columns(ground_truth="output"))
    assert (parsed.prompt, parsed.ground_truth) == ([USER], "4")


def test_plain_text_is_not_made_a_conversation() -> None:
    assert read({"prompt": "Once upon"}, plain=True).prompt == "Once upon"
    assert read({"input": "Once upon"}, plain=True).prompt == "Once upon"
    with pytest.raises(ValueError, match=r"plain = true, but the row is a conversation of 2 messages"):
        read({"messages": [SYSTEM, USER]}, plain=True)


def test_keys_that_a_parquet_file_fills_with_nothing_are_no_keys() -> None:
    filled = {"from": None, "value": None, "name": None, **USER, "tool_calls": None}
    other = {"role": None, "content": None, "from": "human", "value": "2+2?"}
    assert read({"messages": [filled], "conversations": None, "prompt": None}).prompt == [USER]
    assert read({"conversations": [other], "messages": None}).prompt == [USER]


def test_lists_that_a_csv_file_holds_as_text_are_read() -> None:
    assert read({"messages": json.dumps([USER]), "ground_truth": "4"}).prompt == [USER]
    with pytest.raises(ValueError, match="'messages' is text that is no JSON list"):
        read({"messages": "[{"})


def test_metadata_that_json_has_no_form_for_travels_as_text() -> None:
    from datetime import date

    assert read({"prompt": "2+2?", "day": date(2026, 11, 21)}).metadata == {"day": "2026-11-21"}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([1, 2], "must be a JSON object, not list"),
        ({"text": "hello"}, "no known format has the keys ['text']. Name the columns, as in columns = {"),
        ({"messages": []}, "at least one message"),
        ({"messages": ["hello"]}, "must be an object with 'role' and 'content', not 'hello'"),
        ({"messages": [{"role": "user"}]}, "text 'content'"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "text 'content'"),
        ({"messages": [{"content": "hello"}]}, "needs a 'role'"),
        ({"messages": [ANSWER]}, "no user message to answer"),
        ({"messages": [SYSTEM]}, "no user message to answer"),
        (
            {"messages": [ANSWER, USER], "gt_answer": "4"},
            "beginning with the user: message 1 is of 'assistant'",
        ),
        ({"messages": [USER, USER], "gt_answer": "4"}, "must alternate between user and assistant"),
        (
            {"messages": [{"from": "user", "content": "a"}, {"from": "user", "content": "b"}]},
            "must alternate",
        ),
        ({"conversations": [{"from": "human", "value": "a"}] * 2}, "'conversations' must alternate"),
        ({"conversations": [{"from": "bot", "value": "a"}]}, "message 1 is of 'bot'"),
        ({"conversations": [{"from": "human", "value": None}]}, "text 'content'"),
        ({"instruction": "", "output": "4"}, "'instruction' must be text, not ''"),
        ({"instruction": "a", "history": [["b"]]}, "'history' must hold [instruction, output] pairs"),
        ({"question": 4, "answer": "4"}, "'question' must be text, not 4"),
        ({"prompt": [USER], "reward_model": "rule"}, "'reward_model' is text"),
        ({"prompt": [USER], "reward_model": ["rule"]}, "'reward_model' must be an object"),
        ({"messages": [USER], "system": 3}, "'system' must be text, not 3"),
    ],
)
def test_a_broken_row_is_refused_with_what_is_wrong(row: Any, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        read(row)
    assert message in str(caught.value)


def test_a_row_that_is_not_of_the_format_asked_for_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"format 'alpaca' needs \['instruction'\]; the row has \['question'\]"
    ):
        read({"question": "2+2?"}, format="alpaca")


@pytest.mark.parametrize(
    ("column", "hint"), [("qestion", "did you mean 'question'?"), ("zzz", r"it has \['answer', 'question'\]")]
)
def test_a_misspelt_column_is_named_with_what_was_meant(column: str, hint: str) -> None:
    with pytest.raises(ValueError, match=f"columns.prompt = '{column}': the row has no such column; {hint}"):
        read({"question": "2+2?", "answer": "4"}, columns=Columns(prompt=column))
