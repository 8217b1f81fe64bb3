"""Prepared frames: constant fields of frequent requests are encoded once, and decoded once.

A template writes the ROCKETMQ binary header with one struct call and one join per frame.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from rocketmq_aio.errors import CodecError
from rocketmq_aio.protocol.codes import BINARY_HEADER, CLIENT_VERSION, LANGUAGE_CODE
from rocketmq_aio.protocol.command import (
    FIELD_VALUE,
    Command,
    binary_fields,
    decode_binary_fields,
    decode_command,
    field_key,
)
from rocketmq_aio.protocol.header import RequestHeader, to_ext_fields
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
# A header of a send up to the value of field i: language and the name of field g are skipped.
_SEND_VALUES: Final = Struct(">hxhiiii7x13s3si")
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


class TemplateDecoder:
    """Decodes headers like `decode_command`; fields that `SendTemplate` encodes once only once."""

    def __init__(self) -> None:
        self._constants: dict[bytes, dict[str, str]] = {}  # encoded and decoded constant fields

    def decode(self, encoding: int, header: bytes, body: bytes) -> Command:
        """Return the command in a frame; CodecError if the header cannot be decoded."""
        if (
            encoding != BINARY_HEADER
            or len(header) < _SEND_VALUES.size
            or not header.startswith(_BORN, _HEADER_FIXED)
        ):
            return decode_command(encoding, header, body)
        values = _SEND_VALUES.unpack_from(header)
        code, version, opaque, flag, remark_length, length, born, name, size = values
        end = _SEND_VALUES.size + size
        if (
            remark_length
            or name != _PROPERTIES
            or length + _HEADER_FIXED != len(header)
            or not _SEND_VALUES.size <= end < len(header)
        ):
            return decode_command(encoding, header, body)
        try:
            constant = self._constants.get(header[end:]) or self._remember(header[end:])
            fields = {"g": born.decode(), "i": header[_SEND_VALUES.size : end].decode(), **constant}
        except UnicodeError:  # raised again, as CodecError
            return decode_command(encoding, header, body)
        return Command(code, opaque, flag, None, fields, version, body)

    def _remember(self, encoded: bytes) -> dict[str, str]:
        if len(self._constants) > MAX_REMEMBERED:
            self._constants.clear()
        fields = self._constants[encoded] = decode_binary_fields(encoded, 0)
        return fields


class RequestTemplate:
    """Template for requests of which only a few fields change.

    :param like: a request; its values of *varying* are not used
    :param varying: wire names of the fields that change
    """

    def __init__(self, like: RequestHeader, *varying: str) -> None:
        self.code = int(like.code)
        fixed = to_ext_fields(like)
        for name in varying:
            fixed.pop(name, None)
        # A format of the rest of the header: fields that vary have places for length and value.
        constant, *keys = (
            part.replace(b"%", b"%%") for part in (binary_fields(fixed), *map(field_key, varying))
        )
        self._rest = constant + b"".join([key + b"%b%b" for key in keys])

    def frame(self, opaque: int, *values: str) -> bytes:
        """Return the frame of a request without a body; *values*: those of the fields that vary.

        :raises CodecError: one of them is not valid Unicode
        """
        parts: list[bytes] = []
        try:
            for value in values:
                text = value.encode()
                parts += (FIELD_VALUE.pack(len(text)), text)
        except UnicodeError as cause:
            raise CodecError("header to send", 8, str(cause)) from cause
        fields = self._rest % tuple(parts)
        rest = len(fields)
        length = rest + _HEADER_FIXED
        head = _HEAD.pack(
            4 + length, _BINARY | length, self.code, LANGUAGE_CODE, _VERSION, opaque, 0, 0, rest
        )
        return head + fields
