"""A tokenizer whose tokens can be read, and files of rows, for the tests of this folder."""

import json
from pathlib import Path
from typing import Any

END = 0


class Letters:
    """One token per character, behind the part of a tokenizer that prompts need."""

    chat_template = "<role>content."
    eos_token_id = END

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> str:
        turns = [f"<{message['role']}>{message['content']}." for message in conversation]
        tools = f"<tools>{json.dumps(kwargs['tools'])}" if "tools" in kwargs else ""
        return tools + "".join(turns) + ("<assistant>" if kwargs["add_generation_prompt"] else "")

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [1] * add_special_tokens + [ord(letter) for letter in text]


def write(path: Path, *rows: Any) -> Path:
    """JSONL; a row that is text is written as it is."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def chat(content: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], **more}
