"""What passes between the pool and its processes: msgpack structures behind a length, over a socket pair.

Not pickle: a process that runs code of others must not be able to run any in ours.
"""

import socket
import struct
import time
from typing import Any, Literal, TypeVar

import msgspec

from shared.scoring import ScoreItem

T = TypeVar("T")

_LENGTH = struct.Struct("<I")
MAX_FRAME = 64 * 2**20
"""Bytes. More are refused before memory is taken for them."""


class Prepare(msgspec.Struct, array_like=True, tag=True):
    """Make a function ready. Answered by an `Answer`."""

    key: int
    """Names the function in the `Work` that follows."""
    factory: str
    """`module:function`; called with `parameters`, it gives the function."""
    parameters: dict[str, Any]


class Work(msgspec.Struct, array_like=True, tag=True):
    """One item for a prepared function. Answered by an `Answer`."""

    key: int
    item: ScoreItem


class Answer(msgspec.Struct, array_like=True):
    status: Literal["ok", "error", "timeout", "invalid"]
    value: float = 0.0
    steps: list[float] | None = None
    ends: list[int] = []
    cause: str = ""


class Fork(msgspec.Struct, array_like=True, tag=True):
    """Start a process that serves the socket sent with this frame. Answered by its id, an `int`."""

    modules: list[str]
    """Imported before the fork, so that every later process has them at once."""


class End(msgspec.Struct, array_like=True, tag=True):
    """Kill that process, if it still runs. Answered by its exit code, an `int`: minus the signal's number."""

    pid: int
    wait: bool
    """Else the answer comes at once, and is the code of a killed process: one at low priority may take long
    to die where the processor is busy."""


class Closed(Exception):
    """The other end is gone."""


def send(channel: socket.socket, message: Any, until: float | None = None) -> None:
    """`until`: seconds of the monotonic clock.

    Raises:
    Closed: the other end is gone.
    TimeoutError: it did not take the message in time.
    ValueError: the message has what cannot be sent, such as half a surrogate pair or an integer of 70 bits.
    """
    try:
        body = msgspec.msgpack.encode(message)
    except (OverflowError, TypeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if len(body) > MAX_FRAME:
        raise ValueError(f"{len(body)} bytes are more than {MAX_FRAME}")
    channel.settimeout(_seconds(until))
    try:
        channel.sendall(_LENGTH.pack(len(body)) + body)
    except (BrokenPipeError, ConnectionResetError) as error:
        raise Closed from error


def receive(channel: socket.socket, kind: type[T], until: float | None = None) -> T:
    """The next message, which must be a `kind`. `until`: seconds of the monotonic clock.

    Raises:
    TimeoutError: it was not there in time. What came of it is lost: nothing more can be read.
    Closed: the other end is gone, or does not keep to the protocol.
    """
    (length,) = _LENGTH.unpack(_receive_exactly(channel, _LENGTH.size, until))
    if length > MAX_FRAME:
        raise Closed(f"a frame of {length} bytes")
    try:
        return msgspec.msgpack.decode(_receive_exactly(channel, length, until), type=kind)
    except msgspec.MsgspecError as error:
        raise Closed(f"no {kind}: {error}") from error


def is_open(channel: socket.socket) -> bool:
    """Whether the other end is there and has said nothing."""
    channel.settimeout(0)
    try:
        channel.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False
    return False


def has_message(channel: socket.socket, until: float) -> bool:
    """Wait until something can be read; False if nothing came by `until`."""
    channel.settimeout(_seconds(until))
    try:
        channel.recv(1, socket.MSG_PEEK)
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True  # the next read tells it
    return True


def _receive_exactly(channel: socket.socket, length: int, until: float | None) -> bytes:
    received = bytearray()
    while len(received) < length:
        channel.settimeout(_seconds(until))
        try:
            piece = channel.recv(min(length - len(received), 2**20))
        except ConnectionResetError as error:
            raise Closed from error
        if not piece:
            raise Closed
        received += piece
    return bytes(received)


def _seconds(until: float | None) -> float | None:
    return None if until is None else max(until - time.monotonic(), 1e-4)
