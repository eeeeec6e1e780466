"""What `rollstream config` prints is TOML that means the same."""

import tomllib

from services.console.toml import to_toml


def test_nested_tables_and_lists_come_back_and_what_has_no_value_is_left_out() -> None:
    tables = {
        "learner": {
            "stop": "</answer>",
            "stop_token_ids": [[1], [2, 3]],
            "trackers": ["tensorboard"],
            "heldout": [{"path": "a.jsonl", "hub": None, "columns": {"prompt": None, "system": "s"}}],
            "lora": None,
        }
    }
    assert tomllib.loads(to_toml(tables)) == {
        "learner": {
            "stop": "</answer>",
            "stop_token_ids": [[1], [2, 3]],
            "trackers": ["tensorboard"],
            "heldout": [{"path": "a.jsonl", "columns": {"system": "s"}}],
        }
    }
