"""One entry of a stream, as programs hold it and as Redis does."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any


@dataclass(frozen=True)
class Entry:
    """One stream entry: readable fields for people, payload for programs."""

    entry_id: str
    fields: dict[str, str]
    payload: bytes
    deliveries: int = 1
    """How many consumers it was given to, this one included."""

    @property
    def id(self) -> str:
        """The prompt id, the same on every stream and attempt."""
        return self.fields.get("id", "")


def parse_entry(item: Any) -> Entry:
    """An entry as redis-py gives it."""
    entry_id, raw = item
    payload = raw.pop(b"payload", b"")
    try:
        fields = {name.decode(): value.decode() for name, value in raw.items()}
    except UnicodeDecodeError:  # anyone may have written anything
        fields = {
            name.decode(errors="replace"): value.decode(errors="replace") for name, value in raw.items()
        }
    return Entry(entry_id.decode(), fields, payload)


def flat_entry(fields: Mapping[str, Any], payload: bytes) -> list[Any]:
    """Names and values in turn, as XADD takes them, with the payload and its checksum."""
    fields = {"checksum": checksum(payload), **fields}
    return [*chain.from_iterable(fields.items()), "payload", payload]


def checksum(payload: bytes) -> str:
    """CRC-32 of a payload, in hexadecimal: what the entry that carries it says of it."""
    return f"{zlib.crc32(payload):08x}"


def seconds_of(entry_id: str) -> float:
    """When an entry was appended, by the clock of Redis."""
    return int(entry_id.split("-")[0]) / 1000
