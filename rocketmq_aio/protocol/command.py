"""Commands: encode and decode the header of a frame, JSON or ROCKETMQ binary.

JSON headers are decoded in two steps: the fixed fields here, the ext fields by `read_header`, which
knows their types.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from struct import Struct, error
from typing import Final

import msgspec

from rocketmq_aio.errors import CodecError
from rocketmq_aio.protocol.codes import (
    BINARY_HEADER,
    CLIENT_VERSION,
    JSON_HEADER,
    LANGUAGE,
    LANGUAGE_CODE,
    ONEWAY_FLAG,
    RESPONSE_FLAG,
)
from rocketmq_aio.protocol.fastjson import READ_ERRORS
from rocketmq_aio.protocol.frame import HEADER_MASK, PREFIX

MAX_BINARY_CODE: Final = 0x7FFF  # above it a binary header would truncate the code
FIXED: Final = Struct(">hBhiii")  # code language version opaque flag remark-length
FIELD_KEY: Final = Struct(">h")
FIELD_VALUE: Final = Struct(">i")
EMPTY: Final = msgspec.Raw(b"{}")

ExtFields = msgspec.Raw | dict[str, str]


class Command(msgspec.Struct, rename={"ext": "extFields", "body": " body"}, gc=False):
    """A received command; *ext* stays undecoded JSON until it is used."""

    code: int
    opaque: int
    flag: int = 0
    remark: str | None = None
    ext: ExtFields | None = None
    version: int = 0
    body: bytes = b""

    @property
    def is_response(self) -> bool:
        """Whether it is a response."""
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_oneway(self) -> bool:
        """Whether its sender expects no response."""
        return bool(self.flag & ONEWAY_FLAG)

    def ext_fields(self) -> dict[str, str]:
        """All ext fields as text, whatever their JSON type."""
        if isinstance(self.ext, dict):
            return self.ext
        return _text_fields(self.ext) if self.ext is not None else {}


class _JsonCommand(Command, rename={"ext": "extFields", "body": " body"}, gc=False):
    # Narrower than in the base: only JSON headers are decoded in two steps.
    ext: msgspec.Raw = EMPTY  # pyright: ignore[reportIncompatibleVariableOverride]


_decode_json = msgspec.json.Decoder(_JsonCommand).decode
_decode_fields = msgspec.json.Decoder(dict[str, str | int | float | bool | None] | None).decode
_encode_json = msgspec.json.Encoder().encode


def decode_command(encoding: int, header: bytes, body: bytes) -> Command:
    """Return the command in a frame; CodecError if the header cannot be decoded."""
    if encoding == JSON_HEADER:
        try:
            command: Command = _decode_json(header)
        except READ_ERRORS as cause:
            raise CodecError("JSON header", 8, str(cause)) from cause
    elif encoding == BINARY_HEADER:
        command = _decode_binary(header)
    else:
        raise CodecError("header encoding", 4, f"{encoding}, expected 0 (JSON) or 1 (ROCKETMQ)")
    if body:
        command.body = body
    return command


def _text_fields(raw: msgspec.Raw) -> dict[str, str]:
    try:
        fields = _decode_fields(raw) or {}
    except READ_ERRORS as cause:
        raise CodecError("extFields", 8, str(cause)) from cause
    return {name: _text(value) for name, value in fields.items() if value is not None}


def _text(value: str | float | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(value)


def _decode_binary(header: bytes) -> Command:
    try:
        code, _, version, opaque, flag, remark_length = FIXED.unpack_from(header)
        remark_end = FIXED.size + remark_length
        (fields_length,) = FIELD_VALUE.unpack_from(header, remark_end)
    except error as cause:
        raise CodecError("binary header", 8, f"too short ({len(header)} bytes)") from cause
    fields_at = remark_end + FIELD_VALUE.size
    if remark_length < 0 or fields_length < 0 or fields_at + fields_length != len(header):
        reason = f"lengths {remark_length} and {fields_length} in {len(header)} bytes"
        raise CodecError("binary header", 8, reason)
    try:
        remark = header[FIXED.size : remark_end].decode() if remark_length else None
        fields = decode_binary_fields(header, fields_at)
    except UnicodeError as cause:
        raise CodecError("binary header", 8, str(cause)) from cause
    return Command(code, opaque, flag, remark, fields, version)


def decode_binary_fields(header: bytes, at: int) -> dict[str, str]:
    """Return the ext fields in *header* from *at* to its end; CodecError if they run past it."""
    fields: dict[str, str] = {}  # the last duplicate wins: some Java clients write keys twice
    end = len(header)
    while at < end:  # lengths are read by indexing, which is faster than by slices
        key_at = at + 2
        key_end = key_at + (header[at] << 8 | header[at + 1]) if key_at <= end else end
        value_at = key_end + 4
        if value_at > end:
            raise CodecError("binary ext field", 8 + key_at, "the key runs past the header")
        high = header[key_end] << 24 | header[key_end + 1] << 16
        at = value_at + (high | header[key_end + 2] << 8 | header[key_end + 3])
        if at > end:
            raise CodecError("binary ext field", 8 + value_at, "the value runs past the header")
        fields[header[key_at:key_end].decode()] = header[value_at:at].decode()
    return fields


def encode_command(
    command: Command, ext: Mapping[str, str], *, binary: bool = False, version: int = CLIENT_VERSION
) -> bytes:
    """Return *command* with *ext* as a frame.

    A code above 32767 does not fit a binary header: it always gets a JSON header.

    :raises CodecError: a number or a text does not fit its field
    """
    try:
        if binary and command.code <= MAX_BINARY_CODE:
            word, header = BINARY_HEADER << 24, _encode_binary_header(command, ext, version)
        else:
            word, header = JSON_HEADER << 24, _encode_json_header(command, ext, version)
    except (error, UnicodeError) as cause:
        raise CodecError("header to send", 8, str(cause)) from cause
    if len(header) > HEADER_MASK:
        raise CodecError("header length", 4, f"{len(header)}, at most {HEADER_MASK} fit")
    length = 4 + len(header) + len(command.body)
    return b"".join((PREFIX.pack(length, word | len(header)), header, command.body))


def _encode_json_header(command: Command, ext: Mapping[str, str], version: int) -> bytes:
    fields: dict[str, object] = {
        "code": command.code,
        "extFields": ext,
        "flag": command.flag,
        "language": LANGUAGE,
        "opaque": command.opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": version,
    }
    if command.remark is not None:
        fields["remark"] = _remark(command).decode()
    return _encode_json(fields)


def _encode_binary_header(command: Command, ext: Mapping[str, str], version: int) -> bytes:
    remark = _remark(command)
    code, opaque, flag = command.code, command.opaque, command.flag
    head = FIXED.pack(code, LANGUAGE_CODE, version, opaque, flag, len(remark))
    fields = binary_fields(ext)
    return b"".join((head, remark, FIELD_VALUE.pack(len(fields)), fields))


def _remark(command: Command) -> bytes:
    # May be the text of an exception, and not be valid Unicode.
    return command.remark.encode("utf-8", "replace") if command.remark else b""


@lru_cache(maxsize=1024)
def field_key(name: str) -> bytes:
    """Return the name of an ext field with its length; there are few names."""
    key = name.encode()
    return FIELD_KEY.pack(len(key)) + key


def binary_fields(ext: Mapping[str, str]) -> bytes:
    """Return ext fields for a binary header, without empty ones.

    Brokers drop empty fields and reject signatures over them.
    """
    parts: list[bytes] = []
    for name, value in ext.items():
        if value:
            text = value.encode()
            parts += (field_key(name), FIELD_VALUE.pack(len(text)), text)
    return b"".join(parts)
