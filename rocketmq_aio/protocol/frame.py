"""Frame decoder: splits a byte stream into frames.

length of the rest | header encoding << 24 | header length | header | body
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from struct import Struct
from typing import Final

from rocketmq_aio.core import core
from rocketmq_aio.errors import CodecError

PREFIX: Final = Struct(">II")
LENGTH: Final = Struct(">I")
HEADER_MASK: Final = 0xFF_FFFF
LARGE_BYTES: Final = 128 * 1024  # of bodies: glibc maps such blocks, and unmaps them when freed
MAX_KEPT_BYTES: Final = 4 * 1024 * 1024

Deliver = Callable[[int, bytes, bytes], None]  # header encoding, header, body


class FrameDecoder:
    """Passes complete frames to *deliver*; buffers the rest.

    A length is validated before its bytes are buffered, so that an invalid one cannot fill memory.

    :param recycle: use the memory of a large body for the next one, once nothing else refers to
        it: the system needs longer to provide new memory than the rest takes.  Call `trim`
    :ivar position: bytes of the stream delivered in complete frames
    """

    def __init__(self, deliver: Deliver, *, max_frame_bytes: int, recycle: bool = False) -> None:
        self._deliver = deliver
        self._max = max_frame_bytes
        self._recycles = recycle
        self._kept: list[bytes] = []  # the last large body
        self._trimmed = False  # since the last large body
        # Of the incomplete frame: its first 8 bytes, its header, and what is received of the part,
        # header or body, of `_need` bytes.  `BytesIO` gives its bytes away without a copy.
        self._prefix = b""
        self._header: bytes | None = None
        self._part = BytesIO()
        self._need = 0
        self._body: bytes | None = None  # of a large frame, instead of `_part`
        self._filled = 0
        self.position = 0

    def feed(self, data: bytes | memoryview) -> None:
        """Decode the next bytes of the stream; a buffer may be used again afterwards.

        :raises CodecError: they are not a frame; the stream cannot be decoded further
        """
        if core is None:
            data = bytes(data)  # slicing bytes is cheaper than slicing a buffer
        at = 0
        if self._prefix and (at := self._resume(data, 0)) < 0:
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
            self._resume(data, at)

    @property
    def has_unfinished(self) -> bool:
        """Whether an incomplete frame is buffered."""
        return bool(self._prefix)

    def unfinished_header(self) -> tuple[int, bytes] | None:
        """Return header encoding and header of the incomplete frame; None if not yet received."""
        return None if self._header is None else (self._prefix[4], self._header)

    def unfinished_body(self) -> bytes:
        """Return what is received of the body of the incomplete frame."""
        body = self._part.getvalue() if self._body is None else self._body[: self._filled]
        return bytes(body)

    def trim(self, *, idle: bool) -> None:
        """Release the memory kept for large bodies, if unused since the last call or if *idle*."""
        if self._trimmed or idle:
            self._kept.clear()
        self._trimmed = True

    def _check(self, length: int, word: int, position: int) -> None:
        if not 4 <= length <= self._max - 4:
            raise CodecError("frame length", position, f"{length}, expected 4 to {self._max - 4}")
        if (word & HEADER_MASK) > length - 4:
            reason = f"{word & HEADER_MASK} in a frame of {length} bytes"
            raise CodecError("header length", position + 4, reason)

    def _resume(self, data: bytes | memoryview, at: int) -> int:
        """Add *data* from *at* on to the incomplete frame, and deliver it once it is complete.

        Returns the end of the frame in *data*, -1 if it is behind it.
        """
        view = memoryview(data)
        if (known := len(self._prefix)) < 8:
            self._prefix += view[at : at + 8 - known]
            at += 8 - known
            if not self._start_part():
                return -1
        if self._header is None:
            if (at := self._collect(view, at)) < 0:
                return -1
            self._header, self._part = self._part.getvalue(), BytesIO()
            length, _ = PREFIX.unpack(self._prefix)
            self._need = length - 4 - len(self._header)
        if (at := self._collect_body(view, at)) < 0:
            return -1
        encoding, header, body = self._prefix[4], self._header, self._body
        if body is None:
            body = self._part.getvalue()
        elif self._recycles and len(body) <= MAX_KEPT_BYTES:
            self._kept[:] = [body]
            self._trimmed = False
        self._prefix, self._header, self._part, self._body = b"", None, BytesIO(), None
        self.position += 8 + len(header) + len(body)
        self._deliver(encoding, header, body)
        return at

    def _start_part(self) -> bool:
        """Validate the received lengths; whether both are there."""
        prefix = self._prefix
        if len(prefix) >= 4:
            (length,) = LENGTH.unpack_from(prefix)
            word = LENGTH.unpack_from(prefix, 4)[0] if len(prefix) == 8 else 0
            self._check(length, word, self.position)
            self._need = word & HEADER_MASK
        return len(prefix) == 8

    def _collect_body(self, view: memoryview, at: int) -> int:
        if core is None or self._need < LARGE_BYTES:
            return self._collect(view, at)
        here = len(view) - at
        if self._body is None:
            received = self._part.tell()
            # A length alone allocates no memory: it may be wrong.
            if not self._kept and 8 * (received + here) < self._need:
                return self._collect(view, at)
            self._body = core.take_body(self._kept, self._need)
            self._filled = core.fill_body(self._body, 0, self._part.getvalue())
            self._part = BytesIO()
        missing = self._need - self._filled
        self._filled = core.fill_body(self._body, self._filled, view[at : at + missing])
        return at + missing if missing <= here else -1

    def _collect(self, view: memoryview, at: int) -> int:
        """Add what *view* has of the current part; return where that ends, -1 if behind it."""
        missing = self._need - self._part.tell()
        self._part.write(view[at : at + missing])
        return at + missing if missing <= len(view) - at else -1
