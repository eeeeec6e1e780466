"""What really happened on the streams, read from Redis's append-only file: nothing there was told by a
service about itself.
"""

from collections.abc import Iterator
from pathlib import Path

from shared.codec import decode_prompt


def issued_ids(folder: Path, run: str) -> list[str]:
    """Ids of all prompts that were ever appended to the prompts stream, in order, each time they were."""
    ids = []
    for command in _commands(folder):
        if command[0].upper() == b"XADD" and command[1] == f"rollstream:{{{run}}}:prompts".encode():
            fields = dict(zip(command[3::2], command[4::2], strict=True))
            ids.append(decode_prompt(fields[b"payload"]).id)
    return ids


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
