"""Prepared frames of sends and pulls: constant fields are encoded once.

A template writes the ROCKETMQ binary header with one struct call and one join per frame.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from rocketmq_aio.protocol.codes import BINARY_HEADER, CLIENT_VERSION, LANGUAGE_CODE
from rocketmq_aio.protocol.command import FIELD_VALUE, binary_fields
from rocketmq_aio.protocol.header import to_ext_fields
from rocketmq_aio.protocol.requests.pull import PullMessage
from rocketmq_aio.protocol.requests.send import SendMessage

# frame length, encoding and header length, code, language, version, opaque, flag, remark length,
# length of the ext fields
_HEAD: Final = Struct(">iIhBhiiii")
_HEADER_FIXED: Final = 21  # bytes of a header that are not ext fields
_BINARY: Final = BINARY_HEADER << 24
_VERSION: Final = CLIENT_VERSION
# The same, field g (born time, 13 digits until the year 2286) and the length of field i.
_SEND_HEAD: Final = Struct(">iIhBhiiii7s13s3si")
_SEND_FIELDS: Final = 27  # bytes of those two
_BORN: Final = b"\x00\x01g\x00\x00\x00\x0d"
_PROPERTIES: Final = b"\x00\x01i"
MAX_REMEMBERED: Final = 1024  # user flags can take any value


class SendTemplate:
    """Template for sends of a group to a topic on a broker, of messages or of batches."""

    def __init__(self, like: SendMessage) -> None:
        self._code = int(like.code)
        fixed = to_ext_fields(like)
        for name in ("e", "f", "g", "h", "i"):
            fixed.pop(name, None)
        self._constant = binary_fields(fixed)
        self._fixed: dict[tuple[int, int, int], bytes] = {}
        self._born_ms = -1
        self._born = b""

    def frame_head(
        self, opaque: int, numbers: tuple[int, int, int], born_ms: int, properties: bytes, size: int
    ) -> bytes:
        """Return the frame up to a body of *size* bytes; *numbers*: queue id, sysFlag, flag."""
        fixed = self._fixed.get(numbers) or self._remember(numbers)
        if born_ms != self._born_ms:
            # The time of an unset clock is padded to 13 digits.
            self._born_ms, self._born = born_ms, b"%013d" % born_ms
        properties_length = len(properties)
        fields = _SEND_FIELDS + properties_length + len(fixed)
        length = fields + _HEADER_FIXED
        head = _SEND_HEAD.pack(
            4 + length + size,
            _BINARY | length,
            self._code,
            LANGUAGE_CODE,
            _VERSION,
            opaque,
            0,
            0,
            fields,
            _BORN,
            self._born,
            _PROPERTIES,
            properties_length,
        )
        return b"%b%b%b" % (head, properties, fixed)

    def _remember(self, numbers: tuple[int, int, int]) -> bytes:
        if len(self._fixed) > MAX_REMEMBERED:
            self._fixed.clear()
        texts = dict(zip("efh", map(str, numbers), strict=True))
        fixed = self._fixed[numbers] = self._constant + binary_fields(texts)
        return fixed


class PullTemplate:
    """Template for pulls of a group from a queue."""

    def __init__(self, like: PullMessage) -> None:
        self.code = int(like.code)
        fixed = to_ext_fields(like)
        del fixed["queueOffset"]
        self._constant = binary_fields(fixed)

    def frame(self, opaque: int, queue_offset: int) -> bytes:
        """Return the frame."""
        offset = b"%d" % queue_offset
        size = FIELD_VALUE.pack(len(offset))
        fields = b"%b\x00\x0bqueueOffset%b%b" % (self._constant, size, offset)
        rest = len(fields)
        length = rest + _HEADER_FIXED
        head = _HEAD.pack(
            4 + length, _BINARY | length, self.code, LANGUAGE_CODE, _VERSION, opaque, 0, 0, rest
        )
        return head + fields
