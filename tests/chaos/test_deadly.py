"""A prompt that kills whoever answers it is found out and buried, alone."""

import json
from pathlib import Path

import pytest

from examples.arithmetic.problems import first_problems, write_prompts
from tests.chaos.audit import audit
from tests.chaos.conftest import Begin
from tests.chaos.engine import DEADLY

ROWS = 24  # what six steps train on: the deadly one more is met once, in whatever order


@pytest.mark.chaos_long
def test_a_prompt_that_kills_its_servers_takes_no_other_along(begin: Begin, tmp_path: Path) -> None:
    prompts = tmp_path / "deadly.jsonl"
    write_prompts(prompts, first_problems("train", ROWS))
    with prompts.open("a") as file:
        question = [{"role": "user", "content": f"What is {DEADLY}?"}]
        file.write(json.dumps({"messages": question, "ground_truth": "0"}) + "\n")
    pipeline = begin(prompts=prompts, steps=6)
    pipeline.finish(180)
    (cause,) = audit(pipeline, 6).values()
    assert "consumers took it and none finished it" in cause
    assert len(pipeline.deaths) == 5 and all(death == ("rollout0", -9) for death in pipeline.deaths)
