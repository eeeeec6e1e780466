from pathlib import Path

import pytest
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from services.reward.neural.config import NeuralConfig
from services.reward.neural.text import Renderer, split_steps
from shared.scoring import ScoreItem
from tests.reward.neural.models import write_tokenizer


@pytest.mark.parametrize("architecture", ["sequence_classification", "causal_lm_steps"])
@pytest.mark.parametrize("prompt", ["<s>U", "U"])
def test_a_text_has_one_bos_whether_or_not_the_policys_template_wrote_it(
    tmp_path: Path, architecture: str, prompt: str
) -> None:
    write_tokenizer(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    config = NeuralConfig.model_validate(
        {"kind": "neural", "path": tmp_path, "architecture": architecture, "prompt_as": "text"}
    )
    ids = Renderer(tokenizer, config, longest=100).tokens(ScoreItem(prompt=prompt, response="R")).ids
    assert ids.count(tokenizer.bos_token_id) == 1 and ids[0] == tokenizer.bos_token_id


def test_steps_are_what_stands_between_separators_and_end_where_they_end_in_the_text() -> None:
    response = "one\n\n \n\ntwo 🙂\n\n\n\nthree"
    steps = split_steps(response, "\n\n")
    assert [step for step, _ in steps] == ["one", "two 🙂", "three"]
    for step, end in steps:
        assert response[:end].endswith(step)
    assert split_steps("", "\n\n") == [("", 0)]
