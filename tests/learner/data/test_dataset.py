"""Prompts rendered, tokenised and filtered; what the config says of datasets."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jinja2 import TemplateError
from pydantic import ValidationError

from services.learner.config.data import DataConfig, DatasetConfig
from services.learner.config.learner import LearnerSettings
from services.learner.data.dataset import load_dataset, load_datasets
from services.learner.data.formats import FORMATS
from services.learner.data.prompts import Dataset
from shared.config import load_settings
from tests.learner.data.letters import Letters, chat, write

GSM8K = Path(__file__).parents[4] / "shared" / "data" / "gsm8k"


def load(path: Path, max_prompt_tokens: int = 100, **config: Any) -> Dataset:
    return load_dataset(DatasetConfig(path=path, **config), Letters(), max_prompt_tokens)


def test_a_prompt_is_rendered_by_the_chat_template_and_tells_its_dataset(tmp_path: Path) -> None:
    path = write(tmp_path / "sums.jsonl", chat("2+2?", ground_truth="4", level=3))
    dataset = load(path)
    (row,) = dataset.rows
    assert row.text == "<user>2+2?.<assistant>"
    assert list(row.token_ids) == [ord(letter) for letter in row.text]
    messages = [{"role": "user", "content": "2+2?"}]
    assert row.ground_truth == "4"
    assert row.metadata == {"level": 3, "dataset": "sums", "messages": messages}
    assert dataset.name == "sums"


def test_plain_text_is_tokenised_as_it_is_with_the_tokenizers_special_tokens(tmp_path: Path) -> None:
    (row,) = load(write(tmp_path / "p.jsonl", {"prompt": "Once"}), plain=True).rows
    assert row.text == "Once" and list(row.token_ids) == [1, *map(ord, "Once")]


def test_tools_are_given_to_the_chat_template(tmp_path: Path) -> None:
    (row,) = load(write(tmp_path / "p.jsonl", chat("2+2?", tools=[{"name": "add"}]))).rows
    assert row.text.startswith('<tools>[{"name": "add"}]<user>')


def test_long_prompts_are_left_out_and_counted(tmp_path: Path) -> None:
    dataset = load(write(tmp_path / "p.jsonl", chat("short"), chat("x" * 500), chat("y" * 90)))
    assert (len(dataset.rows), dataset.too_long) == (1, 2)


def test_a_prompt_of_exactly_the_limit_is_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", chat("abc"))
    length = len("<user>abc.<assistant>")
    assert load(path, length).too_long == 0
    with pytest.raises(
        ValueError, match=f"max_prompt_tokens={length - 1}; the shortest prompt has {length} tok"
    ):
        load(path, length - 1)


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"p\.jsonl: no prompt within .*; there are no rows"):
        load(write(tmp_path / "p.jsonl"))


def test_an_empty_prompt_is_refused(tmp_path: Path) -> None:
    class Bare(Letters):
        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            return super().encode(text, add_special_tokens=False)

    config = DatasetConfig(path=write(tmp_path / "p.jsonl", {"prompt": ""}), plain=True)
    with pytest.raises(ValueError, match="line 1: the prompt is empty"):
        load_dataset(config, Bare(), 100)


@pytest.mark.parametrize(
    ("row", "message"),
    [('{"messages": [', "Expecting value"), ({"text": "a"}, "no known format"), ("3", "not int")],
)
def test_a_broken_row_is_refused_with_file_and_line(tmp_path: Path, row: Any, message: str) -> None:
    path = write(tmp_path / "p.jsonl", chat("fine"), "", row)
    with pytest.raises(ValueError) as caught:
        load(path)
    assert f"prompt file {path}, line 3: " in str(caught.value) and message in str(caught.value)


def test_a_row_that_the_chat_template_refuses_is_named_by_its_line(tmp_path: Path) -> None:
    class Strict(Letters):
        def apply_chat_template(self, conversation: Any, **kwargs: Any) -> str:
            raise TemplateError("roles must alternate")

    config = DatasetConfig(path=write(tmp_path / "p.jsonl", chat("hello")))
    with pytest.raises(ValueError, match="line 1: roles must alternate"):
        load_dataset(config, Strict(), 100)


def test_datasets_are_loaded_in_order_with_names_and_weights(tmp_path: Path) -> None:
    first, second = (write(tmp_path / f"{name}.jsonl", chat(name), chat("x" * 99)) for name in ("one", "two"))
    config = DataConfig.model_validate(
        {
            "prompts": [{"path": first, "weight": 3}, {"path": second, "weight": 1, "name": "other"}],
            "heldout": [{"path": first}, {"path": second, "limit": 1}],
            "max_prompt_tokens": 60,
        }
    )
    training, heldout = load_datasets(config, Letters(), system_message="Hi")
    assert [(d.name, d.weight, d.too_long) for d in training] == [("one", 3.0, 1), ("other", 1.0, 1)]
    assert [(d.name, d.too_long) for d in heldout] == [("one", 1), ("two", 0)]
    assert training[0].rows[0].text == "<system>Hi.<user>one.<assistant>"


def test_one_path_is_enough_for_a_dataset() -> None:
    config = DataConfig.model_validate({"prompts": "a/b.jsonl", "heldout": Path("c.parquet")})
    assert [(d.name, d.path) for d in config.prompts] == [("train", Path("a/b.jsonl"))]
    assert [(d.name, d.path) for d in config.heldout] == [("heldout", Path("c.parquet"))]
    assert DataConfig.model_validate(json.loads(config.model_dump_json())) == config


def test_a_dataset_is_named_after_its_file_or_hub_id() -> None:
    assert DatasetConfig(hub="openai/gsm8k").name == "gsm8k"
    assert DatasetConfig.model_validate({"path": "my data/ä+b.jsonl"}).name == "__b"


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([], "at least 1 item"),
        ([{"name": "a"}], "give either path"),
        ([{"path": "a.jsonl", "hub": "a/b"}], "give either path"),
        ([{"path": "a.jsonl", "revision": "main"}], "revision = 'main' is for hub datasets"),
        ([{"path": "a.jsonl", "name": "a/b"}], "use letters, digits"),
        ([{"path": "x/a.jsonl"}, {"path": "y/a.jsonl"}], "several are named 'a'; give each a name"),
        ([{"path": "a.jsonl", "weight": 2}, {"path": "b.jsonl"}], "['b'] have no weight while others have"),
        ([{"path": "a.jsonl", "weight": 0}], "greater than 0"),
        ([{"path": "a.jsonl", "format": "alpacca"}], "'alpaca'"),
        ([{"path": "a.jsonl", "columns": {"promt": "q"}}], "promt"),
    ],
)
def test_a_mistake_in_the_config_is_named(prompts: Any, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        DataConfig.model_validate({"prompts": prompts})
    assert message in str(caught.value)


def settings(folder: Path, text: str, *overrides: str) -> DataConfig:
    path = folder / "run.toml"
    path.write_text('[model]\npath = "m"\n' + text)
    return load_settings(LearnerSettings, path, {}, overrides).learner


def test_datasets_may_be_given_on_the_command_line(tmp_path: Path) -> None:
    some = '[{ path = "a.jsonl", weight = 2 }, { hub = "x/b", weight = 1 }]'
    config = settings(tmp_path, '[learner]\nprompts = "p.jsonl"\n', "--learner.prompts", some)
    assert [(d.name, d.weight) for d in config.prompts] == [("a", 2.0), ("b", 1.0)]
    assert settings(tmp_path, "", "--learner.prompts", "p.jsonl").prompts[0].path == Path("p.jsonl")


@pytest.mark.parametrize(
    ("key", "message"),
    [("wieght = 2", "Did you mean 'weight'"), ("columns = { promt = 'q' }", "Did you mean 'prompt'")],
)
def test_a_misspelt_key_of_a_dataset_gets_a_suggestion(tmp_path: Path, key: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        settings(tmp_path, f'[[learner.prompts]]\npath = "p.jsonl"\n{key}\n')


def test_the_documentation_has_examples_that_are_accepted_and_all_formats(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "data.md").read_text()
    examples = re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    simple, tables = (settings(tmp_path, example) for example in examples)
    assert [d.name for d in (*simple.prompts, *simple.heldout)] == ["train", "heldout"]
    assert [d.name for d in (*tables.prompts, *tables.heldout)] == [
        "gsm8k",
        "competition",
        "gsm8k",
        "olympiad",
    ]
    rows = re.findall(r"^\| `(\w+)`(?: \(|  *\|)", text, flags=re.MULTILINE)
    assert rows == list(FORMATS)


@pytest.mark.skipif(not GSM8K.is_dir(), reason=f"GSM8K is not at {GSM8K}")
def test_gsm8k_is_read_as_published() -> None:
    dataset = load(GSM8K / "test.jsonl", max_prompt_tokens=2000)
    assert (len(dataset.rows), dataset.too_long) == (1319, 0)
    assert dataset.rows[0].ground_truth is not None and dataset.rows[0].ground_truth.endswith("#### 18")
    assert all(row.ground_truth and "####" in row.ground_truth for row in dataset.rows)
