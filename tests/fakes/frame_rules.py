"""What a proxy can do to whole frames: pure functions, and a table that says when."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from rocketmq_aio.errors import CodecError
from rocketmq_aio.protocol.command import Command, decode_command, encode_command
from rocketmq_aio.protocol.frame import HEADER_MASK, LENGTH, PREFIX

MAX_FRAME_BYTES: Final = 64 * 1024 * 1024  # more is no frame but garbage, which passes too
FLIP: Final = 0xFF
OTHER: Final = -1  # request code of what is no answer to anything seen


@dataclass(frozen=True, slots=True, kw_only=True)
class PassingFrame:
    """One frame on its way; *request_code* is what it asks for, or what it answers."""

    at: float
    connection: int
    upward: bool  # from client to server
    request_code: int
    command: Command
    data: bytes


Rule = Callable[[PassingFrame], Iterable[bytes]]  # what passes in place of the frame


def drop(_frame: PassingFrame) -> Iterable[bytes]:
    """Let nothing pass: of an answer, the request has taken effect all the same."""
    return ()


def duplicate(frame: PassingFrame) -> Iterable[bytes]:
    return (frame.data, frame.data)


def corrupt(at: int) -> Rule:
    """Return the rule that turns over all bits of the byte at *at*; below 0 from the end."""

    def rule(frame: PassingFrame) -> Iterable[bytes]:
        data = bytearray(frame.data)
        data[at] ^= FLIP
        return (bytes(data),)

    return rule


def with_length(length: int) -> Rule:
    """Return the rule that writes another length prefix: whoever reads it loses the boundaries."""
    return lambda frame: (LENGTH.pack(length) + frame.data[LENGTH.size :],)


def truncate(length: int) -> Rule:
    """Return the rule that lets the first *length* bytes pass and no more."""
    return lambda frame: (frame.data[:length],)


def with_code(code: int, remark: str | None = None) -> Rule:
    """Return the rule that says another code in a frame."""

    def rule(frame: PassingFrame) -> Iterable[bytes]:
        old = frame.command
        new = Command(code, old.opaque, old.flag, remark or old.remark, body=old.body)
        return (encode_command(new, old.ext_fields(), version=old.version),)

    return rule


class FrameCutter:
    """Cuts a byte stream at the ends of its frames; what is no frame passes as it comes."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._opaque_stream = False

    def feed(self, data: bytes) -> list[bytes]:
        """Return the pieces that are whole now: one frame each, or bytes that belong to none."""
        self._buffer += data
        pieces: list[bytes] = []
        while not self._opaque_stream and len(self._buffer) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._buffer)
            if not 4 <= length <= MAX_FRAME_BYTES:
                self._opaque_stream = True
            elif len(self._buffer) < LENGTH.size + length:
                return pieces
            else:
                pieces.append(bytes(self._buffer[: LENGTH.size + length]))
                del self._buffer[: LENGTH.size + length]
        return pieces + self.rest() if self._opaque_stream else pieces

    def rest(self) -> list[bytes]:
        """Return what was kept for a frame that will not become whole."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return [rest] if rest else []


def read_frame(data: bytes) -> Command | None:
    """Return what *data* says if it is a whole frame."""
    if len(data) < PREFIX.size:
        return None
    _, word = PREFIX.unpack_from(data)
    body_at = PREFIX.size + (word & HEADER_MASK)
    try:
        return decode_command(word >> 24, data[PREFIX.size : body_at], data[body_at:])
    except CodecError:
        return None
