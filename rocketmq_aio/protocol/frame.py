"""Frame decoder: splits a byte stream into frames.

length of the rest | header encoding << 24 | header length | header | body
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

from rocketmq_aio.core import core
from rocketmq_aio.errors import CodecError

PREFIX: Final = Struct(">II")
LENGTH: Final = Struct(">I")
HEADER_MASK: Final = 0xFF_FFFF
MANY_CHUNKS: Final = 64  # then a slowly received frame is joined into one buffer

Deliver = Callable[[int, bytes, bytes], None]  # header encoding, header, body


class FrameDecoder:
    """Passes complete frames to *deliver*; buffers the rest.

    A length is validated before its bytes are buffered, so that an invalid one cannot fill memory.

    :ivar position: bytes of the stream delivered in complete frames
    """

    def __init__(self, deliver: Deliver, *, max_frame_bytes: int) -> None:
        self._deliver = deliver
        self._max = max_frame_bytes
        self._chunks: list[bytes | bytearray] = []
        self._have = 0
        self._need = 0
        self.position = 0

    def feed(self, data: bytes | memoryview) -> None:
        """Decode the next bytes of the stream; a buffer may be used again afterwards.

        :raises CodecError: they are not a frame; the stream cannot be decoded further
        """
        if core is None:
            data = bytes(data)  # slicing bytes is cheaper than slicing a buffer
        at = 0
        if self._chunks and (at := self._finish(data)) < 0:
            return
        start, end, longest = at, len(data), self._max - 4
        if core is not None:
            at = core.cut_frames(data, at, longest, self._deliver)
        while end - at >= 8:
            length, word = PREFIX.unpack_from(data, at)
            frame_end = at + 4 + length
            body_at = at + 8 + (word & HEADER_MASK)
            if frame_end > end or body_at > frame_end or length > longest:
                self._check(length, word, self.position + at - start)
                break
            self._deliver(word >> 24, bytes(data[at + 8 : body_at]), bytes(data[body_at:frame_end]))
            at = frame_end
        self.position += at - start
        if at < end:
            self._keep(bytes(data[at:]))

    @property
    def has_unfinished(self) -> bool:
        """Whether an incomplete frame is buffered."""
        return bool(self._chunks)

    def unfinished(self) -> tuple[int, bytes, bytes] | None:
        """Return header encoding, header and partial body of the incomplete frame.

        None if its header is incomplete.
        """
        data = b"".join(self._chunks)
        if len(data) < 8:
            return None
        _, word = PREFIX.unpack_from(data)
        body_at = 8 + (word & HEADER_MASK)
        return (word >> 24, data[8:body_at], data[body_at:]) if body_at <= len(data) else None

    def _check(self, length: int, word: int, position: int) -> None:
        if not 4 <= length <= self._max - 4:
            raise CodecError("frame length", position, f"{length}, expected 4 to {self._max - 4}")
        if (word & HEADER_MASK) > length - 4:
            reason = f"{word & HEADER_MASK} in a frame of {length} bytes"
            raise CodecError("header length", position + 4, reason)

    def _keep(self, rest: bytes) -> None:
        """Buffer the start of an incomplete frame."""
        self._chunks = [rest]
        self._have = len(rest)
        if self._have >= 8:
            length, word = PREFIX.unpack_from(rest)
            self._check(length, word, self.position)
            self._need = 4 + length
        elif self._have >= 4:
            (length,) = LENGTH.unpack_from(rest)
            self._check(length, 0, self.position)
            # The second word is needed to validate the header length before buffering the rest.
            self._need = 8
        else:
            self._need = 4

    def _finish(self, data: bytes | memoryview) -> int:
        """Deliver the incomplete frame; return where it ends in *data*, -1 if behind it."""
        at, end = 0, len(data)
        while (missing := self._need - self._have) > 0:
            if missing > end - at:
                self._add(bytes(data[at:]))
                return -1
            self._add(bytes(data[at : at + missing]))
            at += missing
            if self._need <= 8:  # now its lengths are known, or the first one
                self._keep(b"".join(self._chunks))
        chunks, self._chunks = self._chunks, []
        self.position += self._have
        self._deliver(*_parts(chunks))
        return at

    def _add(self, data: bytes) -> None:
        chunks = self._chunks
        if len(chunks) == 1 and isinstance(chunks[0], bytearray):
            chunks[0] += data
        else:
            chunks.append(data)
            if len(chunks) >= MANY_CHUNKS:
                self._chunks = [bytearray(b"".join(chunks))]
        self._have += len(data)


def _parts(chunks: list[bytes | bytearray]) -> tuple[int, bytes, bytes]:
    """Return header encoding, header and body of a frame; its bytes are copied once."""
    first = chunks[0]
    _, word = PREFIX.unpack_from(first) if len(first) >= 8 else (0, HEADER_MASK)
    body_at = 8 + (word & HEADER_MASK)
    rest = chunks[1:]
    if body_at > len(first):  # the header is cut, too
        first, rest = b"".join(chunks), []
        _, word = PREFIX.unpack_from(first)
        body_at = 8 + (word & HEADER_MASK)
    body = b"".join((memoryview(first)[body_at:], *rest))
    return word >> 24, bytes(first[8:body_at]), body
