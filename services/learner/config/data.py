"""Where prompts come from and how they are rendered. See docs/data.md."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from shared.config import Table

FormatName = Literal[
    "messages", "question", "colossalchat", "alpaca", "sharegpt", "verl", "prompt", "openrlhf"
]
"""The row formats of services/learner/data/formats.py."""


class Columns(Table):
    """Names of the user's columns for what a prompt is made of. A column named here overrides recognition."""

    prompt: str | None = None
    """Text, or a list of messages."""
    messages: str | None = None
    ground_truth: str | None = None
    system: str | None = None
    tools: str | None = None


class DatasetConfig(Table):
    """One dataset: a file, a directory, or a dataset on the Hugging Face hub."""

    path: Path | None = None
    """A .jsonl, .json, .csv, .parquet or .arrow file; or a directory: one that `save_to_disk` of the
    `datasets` library wrote, or a copy of a hub dataset."""
    hub: str | None = None
    """Id of a dataset on the Hugging Face hub, such as `openai/gsm8k`; instead of `path`."""
    subset: str | None = None
    """Configuration of the hub dataset, such as `main`."""
    split: str | None = None
    """Split of a hub dataset or directory; `train` if not given."""
    revision: str | None = None
    """Branch, tag or commit of the hub dataset."""
    name: str = ""
    """Names the dataset in metrics, in prompt ids and in each prompt's `metadata.dataset`. Default: that of
    the file or hub id."""
    weight: float | None = Field(default=None, gt=0)
    """Share of the training prompts, relative to the other datasets' weights; for all datasets or for none.
    Without weights every row counts the same, as if all datasets were one file."""
    format: FormatName | None = None
    """Row format. Default: recognised by each row's keys."""
    columns: Columns = Columns()
    plain: bool = False
    """Text prompts go to the model as they are, without a chat template."""
    answer_as_ground_truth: bool = False
    """The answer that ends a conversation, else left out, is the ground truth of rows that have none."""
    limit: int | None = Field(default=None, ge=1)
    """Only the first rows are read."""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, table: Any) -> Any:
        if isinstance(table, dict) and not table.get("name"):
            source = str(table.get("path") or table.get("hub") or "")
            table = {**table, "name": re.sub(r"[^A-Za-z0-9_.-]", "_", Path(source).stem)[:64]}
        return table

    @field_validator("name")
    @classmethod
    def _fit_for_a_metric(cls, name: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9_.-]{0,64}", name):
            raise ValueError("use letters, digits, '_', '.' and '-', at most 64")
        return name

    @model_validator(mode="after")
    def _one_source(self) -> "DatasetConfig":
        if (self.path is None) == (self.hub is None):
            raise ValueError("give either path (a file or directory) or hub (a Hugging Face dataset id)")
        if self.revision and not self.hub:
            raise ValueError(f"revision = {self.revision!r} is for hub datasets; this one has a path")
        return self

    @property
    def place(self) -> str:
        """For messages."""
        return f"dataset {self.hub}" if self.hub else f"prompt file {self.path}"


def _tables(name: str) -> BeforeValidator:
    """Accept a path in place of an array of tables; that dataset gets this name."""

    def tables(value: Any) -> Any:
        if isinstance(value, str | Path):
            return ({"path": value, "name": name},)
        return (value,) if isinstance(value, dict) else value

    return BeforeValidator(tables)


def _table(name: str) -> BeforeValidator:
    """Accept a path in place of one table; that dataset gets this name."""

    def table(value: Any) -> Any:
        return {"path": value, "name": name} if isinstance(value, str | Path) else value

    return BeforeValidator(table)


class DataConfig(Table):
    prompts: Annotated[tuple[DatasetConfig, ...], _tables("train"), Field(min_length=1)]
    """Training prompts: the path of a file, or `[[learner.prompts]]` tables, one for each dataset."""
    heldout: Annotated[tuple[DatasetConfig, ...], _tables("heldout")] = ()
    """Held-out prompts for evaluation, written like `prompts`; none means no evaluation."""
    ptx: Annotated[DatasetConfig | None, _table("ptx")] = None
    """Rows with answers that the policy is taught beside PPO, with `ptx_coef`."""
    ptx_batch_size: int = Field(default=16, ge=1)
    """Of these rows, how many every optimizer step takes."""
    max_ptx_tokens: int = Field(default=1024, ge=2)
    """Longer ones are left out, and counted in the log."""
    chat_template: Path | None = None
    """A Jinja file, or a conversation template of ColossalChat (.json). Default: the tokenizer's own."""
    chat_template_arguments: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """What else the chat template is told, such as `{ enable_thinking = false }` for Qwen3."""
    system_message: str | None = None
    """System message of conversations that have none of their own."""
    max_prompt_tokens: int = Field(default=512, ge=1)
    """Longer prompts are left out, and counted."""

    @field_validator("chat_template_arguments")
    @classmethod
    def _not_of_the_row(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        taken = arguments.keys() & {"messages", "tools", "add_generation_prompt"}
        if taken:
            raise ValueError(f"{min(taken)!r} is given by each row; leave it out")
        return arguments

    @field_validator("prompts", "heldout")
    @classmethod
    def _names_differ(cls, datasets: Sequence[DatasetConfig]) -> Sequence[DatasetConfig]:
        twice = [name for name, count in Counter(dataset.name for dataset in datasets).items() if count > 1]
        if twice:
            raise ValueError(
                f"{len(datasets)} datasets, of which several are named {twice[0]!r}; give each a name"
            )
        return datasets

    @field_validator("prompts")
    @classmethod
    def _weights_for_all_or_none(cls, datasets: Sequence[DatasetConfig]) -> Sequence[DatasetConfig]:
        without = [dataset.name for dataset in datasets if dataset.weight is None]
        if without and len(without) < len(datasets):
            raise ValueError(
                f"{without} have no weight while others have; give all datasets a weight, or none"
            )
        return datasets
