"""The demo's prompt files, rendered and tokenised as our learner does it."""

import json
from pathlib import Path
from typing import Any, NamedTuple


class Row(NamedTuple):
    token_ids: list[int]
    answer: str


def read_rows(path: Path, tokenizer: Any) -> list[Row]:
    """All rows of a file of `messages` and `ground_truth`."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        text = tokenizer.apply_chat_template(row["messages"], tokenize=False, add_generation_prompt=True)
        rows.append(Row(tokenizer.encode(text, add_special_tokens=False), row["ground_truth"]))
    return rows
