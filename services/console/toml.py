"""Tables to TOML text. The standard library only reads TOML."""

import json
from collections.abc import Mapping
from typing import Any


def to_toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """TOML of tables of JSON values. Keys without a value are left out: TOML has no null."""
    blocks = []
    for name, table in tables.items():
        lines = [f"{key} = {_value(value)}" for key, value in table.items() if value is not None]
        blocks.append("\n".join([f"[{name}]", *lines]) + "\n")
    return "\n".join(blocks)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        named = ((json.dumps(key, ensure_ascii=False), item) for key, item in value.items())
        pairs = [f"{name} = {_value(item)}" for name, item in named if item is not None]
        return "{ " + ", ".join(pairs) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False)  # strings, numbers and booleans are written alike
