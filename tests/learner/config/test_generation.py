"""The generation dials: what is accepted, what it means, and what is refused at the door."""

from pathlib import Path
from typing import Any

import pytest

from services.learner.config.generation import GenerationConfig
from services.learner.config.learner import LearnerSettings
from shared.config import load_settings
from shared.experience import Sampling


def dials(**changes: Any) -> GenerationConfig:
    return GenerationConfig.model_validate(changes)


@pytest.mark.parametrize(
    ("given", "sequences"),
    [
        (5, ((5,),)),
        ([5], ((5,),)),
        ([5, 6], ((5, 6),)),
        ([[5], [6, 7]], ((5,), (6, 7))),
        ([], ()),
    ],
)
def test_stop_tokens_have_the_three_forms_of_colossalchat(given: Any, sequences: Any) -> None:
    assert dials(stop_token_ids=given).sampling(1.0, vocabulary=8).stop_token_ids == sequences


@pytest.mark.parametrize(
    ("option", "sequences"),
    [("5", ((5,),)), ("[5, 6]", ((5, 6),)), ("[[5], [6, 7]]", ((5,), (6, 7)))],
)
def test_stop_tokens_can_be_given_on_the_command_line(option: str, sequences: Any, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[model]\npath = 'm'\n[learner]\nprompts = 'p.jsonl'\n")
    overrides = ["--learner.stop_token_ids", option, "--learner.stop", "</answer>"]
    learner = load_settings(LearnerSettings, path, {}, overrides).learner
    assert learner.stop_sequences == sequences
    assert learner.sampling(1.0, 8).stop == ("</answer>",)


def test_every_dial_reaches_the_engine() -> None:
    config = dials(
        max_new_tokens=9, top_p=0.9, top_k=50, min_p=0.05, repetition_penalty=1.1, stop=["a", "b"],
        stop_token_ids=[1, 2], sampling_seed=3,
    )  # fmt: skip
    assert config.sampling(0.7, vocabulary=8) == Sampling(
        temperature=0.7, max_tokens=9, top_p=0.9, top_k=50, min_p=0.05, repetition_penalty=1.1,
        stop=("a", "b"), stop_token_ids=((1, 2),), seed=3,
    )  # fmt: skip


def test_by_default_nothing_but_the_temperature_shapes_the_distribution() -> None:
    assert dials().sampling(1.0, vocabulary=8) == Sampling(temperature=1.0, max_tokens=256)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"top_p": 0.0}, "greater than 0"),
        ({"top_p": 1.1}, "less than or equal to 1"),
        ({"top_k": -1}, "greater than or equal to 0"),
        ({"min_p": 1.5}, "less than or equal to 1"),
        ({"repetition_penalty": 0.0}, "greater than 0"),
        ({"repetition_penalty": float("inf")}, "finite"),
        ({"max_new_tokens": 0}, "greater than or equal to 1"),
        ({"sampling_seed": -1}, "greater than or equal to 0"),
        ({"stop": ""}, "empty text"),
        ({"stop": ["a", ""]}, "empty text"),
        ({"stop_token_ids": -2}, "stop_token_ids has -2"),
        ({"stop_token_ids": [[5], []]}, "empty sequence"),
        ({"stop_token_ids": "x"}, "stop_token_ids"),
        ({"stop_token_ids": [1, 2, 3], "max_new_tokens": 2}, r"for alternatives write \[\[1\], \[2\]\]"),
    ],
)
def test_a_dial_out_of_range_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        dials(**changes)


def test_a_stop_token_that_the_model_does_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match="stop_token_ids has 99; the model knows ids below 50"):
        dials(stop_token_ids=[[7, 99]]).sampling(1.0, vocabulary=50)
