"""Chat templates from a Jinja file and from ColossalChat's conversation template."""

import json
from pathlib import Path
from typing import Any

import pytest

from examples.arithmetic.tokenizer import CHAT_TEMPLATE, build_tokenizer
from services.learner.config.data import DataConfig, DatasetConfig
from services.learner.config.generation import GenerationConfig
from services.learner.data.chat_template import ChatTemplate, check_arguments, load_chat_template
from services.learner.data.dataset import load_dataset, load_datasets
from tests.learner.data.letters import chat, write

JINJA = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}[assistant]"
COLOSSALCHAT = {
    "chat_template": JINJA,
    "system_message": "Answer with an integer.",
    "stop_ids": [5, 7],
    "end_of_assistant": "<|im_end|>",
    "response_format_tags": {"think_start": {"text": "<think>", "num_occur": 1}},
}


def save(folder: Path, content: Any) -> Path:
    path = folder / "template.json"
    path.write_text(json.dumps(content))
    return path


def test_without_a_file_the_tokenizer_keeps_its_own_template() -> None:
    assert load_chat_template(None) == ChatTemplate()


def test_a_jinja_file_is_the_template(tmp_path: Path) -> None:
    path = tmp_path / "chat.jinja"
    path.write_text(JINJA)
    assert load_chat_template(path) == ChatTemplate(JINJA)


def test_a_conversation_template_of_colossalchat_is_read_and_never_written(tmp_path: Path) -> None:
    path = save(tmp_path, COLOSSALCHAT)
    before = path.read_bytes(), path.stat().st_mtime_ns
    assert load_chat_template(path) == ChatTemplate(
        template=JINJA,
        system_message="Answer with an integer.",
        stop=("<|im_end|>",),
        stop_token_ids=((5, 7),),
        tags={"think_start": {"text": "<think>", "num_occur": 1}},
    )
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert [p.name for p in tmp_path.iterdir()] == ["template.json"]


def test_fields_that_are_null_or_missing_say_nothing(tmp_path: Path) -> None:
    assert (
        load_chat_template(save(tmp_path, {"system_message": None, "chat_template": None})) == ChatTemplate()
    )


def test_several_stop_sequences_are_alternatives(tmp_path: Path) -> None:
    assert load_chat_template(save(tmp_path, {"stop_ids": [[5], [6, 7]]})).stop_token_ids == ((5,), (6, 7))


def test_the_template_of_another_models_folder_is_taken(tmp_path: Path) -> None:
    build_tokenizer(64).save_pretrained(tmp_path / "model")
    template = load_chat_template(save(tmp_path, {"chat_template": str(tmp_path / "model")}))
    assert template.template == CHAT_TEMPLATE


def test_its_stops_hold_unless_the_config_names_some(tmp_path: Path) -> None:
    template = load_chat_template(save(tmp_path, COLOSSALCHAT))
    sampling = template.stopping(GenerationConfig()).sampling(1.0, vocabulary=10)
    assert (sampling.stop, sampling.stop_token_ids) == (("<|im_end|>",), ((5, 7),))
    for own in (GenerationConfig(stop="."), GenerationConfig(stop_token_ids=0)):
        assert template.stopping(own) is own


@pytest.mark.parametrize(
    ("stop_ids", "message"),
    [
        ([[5], [-7]], "stop_token_ids has -7"),
        ([5] * 9, "a sequence of 9 tokens, more than max_new_tokens = 8"),
    ],
)
def test_its_stops_are_held_to_what_the_config_may_say(
    tmp_path: Path, stop_ids: list[Any], message: str
) -> None:
    template = load_chat_template(save(tmp_path, {"stop_ids": stop_ids}))
    with pytest.raises(ValueError, match=f"the stops of learner.chat_template: .*{message}"):
        template.stopping(GenerationConfig(max_new_tokens=8))


@pytest.mark.parametrize("text", ["<think>", "<thought>"])
def test_tags_that_the_reward_service_would_not_look_for_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    texts = {"think_start": text, "think_end": "</think>"}
    texts |= {"answer_start": "<answer>", "answer_end": "</answer>"}
    tags = {name: {"text": text, "num_occur": 1} for name, text in texts.items()}
    load_chat_template(save(tmp_path, {"response_format_tags": tags}))
    assert ("reward.tags, so write them there" in caplog.text) == (text == "<thought>")


def test_an_argument_reaches_the_template(tmp_path: Path) -> None:
    """As Qwen3's does: without thinking the assistant begins behind an empty thought."""
    tokenizer = build_tokenizer(64)
    tokenizer.chat_template = (
        "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}[assistant] {% endif %}"
        "{% if enable_thinking is false %}(no thought) {% endif %}"
    )
    rows = write(tmp_path / "p.jsonl", chat("2+2?"))
    config = DataConfig.model_validate(
        {"prompts": rows, "chat_template_arguments": {"enable_thinking": False}}
    )
    ((training,), _) = load_datasets(config, tokenizer, None)
    assert training.rows[0].text == "[user] 2+2?\n[assistant] (no thought) "
    ((training,), _) = load_datasets(DataConfig.model_validate({"prompts": rows}), tokenizer, None)
    assert training.rows[0].text == "[user] 2+2?\n[assistant] "


def test_an_argument_that_the_template_does_not_know_is_refused() -> None:
    template = "{% if enable_thinking is false %}<think></think>{% endif %}"
    check_arguments(template, {"enable_thinking": False})
    for other in ("enable_thinkin", "thinking"):
        with pytest.raises(ValueError, match=f"chat_template_arguments has '{other}', which the chat"):
            check_arguments(template, {other: False})
    with pytest.raises(ValueError, match="'tools' is given by each row"):
        DataConfig.model_validate({"prompts": "p.jsonl", "chat_template_arguments": {"tools": "x"}})


def test_prompts_are_rendered_by_a_template_put_into_the_tokenizer(tmp_path: Path) -> None:
    tokenizer = build_tokenizer(64)
    template = load_chat_template(save(tmp_path, COLOSSALCHAT))
    tokenizer.chat_template = template.template
    config = DatasetConfig(path=write(tmp_path / "p.jsonl", chat("2+2?")))
    (row,) = load_dataset(config, tokenizer, 100, template.system_message).rows
    assert row.text == "[system] Answer with an integer.\n[user] 2+2?\n[assistant]"
    assert tokenizer.decode(list(row.token_ids)) == row.text


def test_a_tokenizer_without_a_template_is_refused_with_the_remedy(tmp_path: Path) -> None:
    tokenizer = build_tokenizer(64)
    tokenizer.chat_template = None
    path = write(tmp_path / "p.jsonl", {"prompt": "2+2="})
    with pytest.raises(ValueError, match=r"line 1: the tokenizer has no chat template: set learner\.chat_t"):
        load_dataset(DatasetConfig(path=path), tokenizer, 100)
    (row,) = load_dataset(DatasetConfig(path=path, plain=True), tokenizer, 100).rows
    assert row.text == "2+2="


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "must be a JSON object with some of chat_template"),
        ({"template": "x"}, "must be a JSON object with some of chat_template"),
        ({"stop_ids": "5"}, "stop_ids = '5' must be of type list"),
        ({"stop_ids": [5, "6"]}, "must be token ids, or lists of them"),
        ({"stop_ids": [[]]}, "must be token ids, or lists of them"),
        ({"end_of_assistant": 3}, "end_of_assistant = 3 must be of type str"),
    ],
)
def test_a_broken_template_file_is_named(tmp_path: Path, content: Any, message: str) -> None:
    path = save(tmp_path, content)
    with pytest.raises(ValueError) as caught:
        load_chat_template(path)
    assert f"learner.chat_template {path} cannot be used: " in str(caught.value)
    assert message in str(caught.value)


def test_a_missing_template_file_and_a_folder_without_a_tokenizer_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere\.jinja cannot be used"):
        load_chat_template(tmp_path / "nowhere.jinja")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"template\.json cannot be used"):
        load_chat_template(save(tmp_path, {"chat_template": str(tmp_path / "empty")}))
