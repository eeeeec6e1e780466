"""What really happened on the streams, read from Redis's append-only file: nothing there was told by a
service about itself.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from shared.codec import MalformedEntry, decode_prompt
from shared.experience import Prompt


def issued_prompts(folder: Path, run: str) -> dict[str, Prompt]:
    """All prompts that were ever appended to the prompts stream, by id, in order of their first time.

    What is none, because a test put it there, is left out.
    """
    prompts: dict[str, Prompt] = {}
    for command in _commands(folder):
        if command[0].upper() == b"XADD" and command[1] == f"rollstream:{{{run}}}:prompts".encode():
            fields = dict(zip(command[3::2], command[4::2], strict=True))
            with contextlib.suppress(MalformedEntry):
                prompt = decode_prompt(fields.get(b"payload", b""))
                prompts.setdefault(prompt.id, prompt)
    return prompts


def _commands(folder: Path) -> Iterator[list[bytes]]:
    """Every whole command that Redis wrote down. Files of an earlier, emptied Redis count too."""
    files = [path for path in folder.rglob("*.aof*") if path.is_file() and "base" not in path.name]
    for path in sorted(files):
        yield from _parse(path.read_bytes())


def _parse(data: bytes) -> Iterator[list[bytes]]:
    at = 0

    def line() -> bytes:
        nonlocal at
        end = data.index(b"\r\n", at)
        found, at = data[at:end], end + 2
        return found

    while data[at : at + 1] == b"*":
        try:
            words = []
            for _ in range(int(line()[1:])):
                size = int(line()[1:])
                words.append(data[at : at + size])
                at += size + 2
        except ValueError:
            return  # the last command was cut off when Redis was killed
        if at <= len(data):
            yield words
