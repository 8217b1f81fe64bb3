"""Rules of the proxy for whole frames, and the splitting of a stream into frames."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from rocketmq_aio.errors import CodecError
from rocketmq_aio.protocol.command import Command, decode_command, encode_command
from rocketmq_aio.protocol.frame import HEADER_MASK, LENGTH, PREFIX

MAX_FRAME_BYTES: Final = 64 * 1024 * 1024  # a longer frame is garbage, which is passed on unchanged
FLIP: Final = 0xFF
OTHER: Final = -1  # request code of responses without a known request


@dataclass(frozen=True, slots=True, kw_only=True)
class PassingFrame:
    """A frame in transit; *request_code* is that of the request or of the answered request."""

    at: float
    connection: int
    upward: bool  # from client to server
    request_code: int
    command: Command
    data: bytes


Rule = Callable[[PassingFrame], Iterable[bytes]]  # returns what is forwarded instead of the frame


def drop(_frame: PassingFrame) -> Iterable[bytes]:
    """Drop the frame; a request whose response is dropped has still been executed."""
    return ()


def duplicate(frame: PassingFrame) -> Iterable[bytes]:
    return (frame.data, frame.data)


def corrupt(at: int) -> Rule:
    """Return a rule that inverts the byte at *at*; negative: counted from the end."""

    def rule(frame: PassingFrame) -> Iterable[bytes]:
        data = bytearray(frame.data)
        data[at] ^= FLIP
        return (bytes(data),)

    return rule


def with_length(length: int) -> Rule:
    """Return a rule that writes another length prefix: the reader loses the frames."""
    return lambda frame: (LENGTH.pack(length) + frame.data[LENGTH.size :],)


def truncate(length: int) -> Rule:
    """Return a rule that forwards only the first *length* bytes."""
    return lambda frame: (frame.data[:length],)


def with_code(code: int, remark: str | None = None) -> Rule:
    """Return a rule that replaces the code of a frame."""

    def rule(frame: PassingFrame) -> Iterable[bytes]:
        old = frame.command
        new = Command(code, old.opaque, old.flag, remark or old.remark, body=old.body)
        return (encode_command(new, old.ext_fields(), version=old.version),)

    return rule


class FrameCutter:
    """Splits a byte stream into frames; data that is not a frame passes unchanged."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._opaque_stream = False

    def feed(self, data: bytes) -> list[bytes]:
        """Return the completed pieces: one frame each, or bytes outside frames."""
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
        """Return the bytes of an incomplete frame."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return [rest] if rest else []


def read_frame(data: bytes) -> Command | None:
    """Return the decoded frame; None if *data* is not a whole frame."""
    if len(data) < PREFIX.size:
        return None
    _, word = PREFIX.unpack_from(data)
    body_at = PREFIX.size + (word & HEADER_MASK)
    try:
        return decode_command(word >> 24, data[PREFIX.size : body_at], data[body_at:])
    except CodecError:
        return None
