"""fastjson dialect: converts JSON with numbers or objects as keys to standard JSON.

    {0:"a"}                       -> {"0":"a"}
    {{"queueId":0,...}:5}         -> {"{\\"queueId\\":0,...}":5}

One pass over the text.  An object key inside an object key is an error: each level would double
the escapes.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from rocketmq_aio.errors import CodecError

T = TypeVar("T")

MAX_DEPTH: Final = 64
SPACE: Final = b" \t\r\n"
BARE_KEY: Final = b"+-.0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"
READ_ERRORS: Final = (msgspec.MsgspecError, RecursionError, UnicodeError)


def read_body(body: bytes, kind: type[T]) -> T:
    """Return a JSON body, standard or fastjson, as *kind*; CodecError if it is neither."""
    try:
        return msgspec.json.decode(body, type=kind, strict=False)
    except READ_ERRORS:
        pass
    try:
        return msgspec.json.decode(to_standard(body), type=kind, strict=False)
    except READ_ERRORS as error:
        raise CodecError(f"{kind.__name__} body", 0, str(error)) from error


def to_standard(text: bytes) -> bytes:
    """Return *text* with every key as a string.

    :raises CodecError: brackets do not match or are nested too deeply, or text follows the last
    """
    whole = _Standardizer(text)
    standard = whole.object_or_value()
    if text[whole.at :].strip(SPACE):
        raise CodecError("JSON body", whole.at, "there is more after its end")
    return standard


class _Standardizer:
    """Converts the value at position *at*, and moves *at* behind it."""

    def __init__(self, text: bytes, at: int = 0, depth: int = 0) -> None:
        self._text = text
        self.at = at
        self._depth = depth  # nesting of the key that starts at *at*; 0 for the whole text
        self._out = bytearray()
        self._open = bytearray()  # open brackets

    def object_or_value(self) -> bytes:
        """Return the outermost value, converted."""
        text, end = self._text, len(self._text)
        while self.at < end:
            byte = text[self.at]
            if byte == 0x22:
                self._copy_string()
            elif byte in b"{[":
                self._enter(byte)
            elif byte in b"}]":
                self._leave(byte)
                if not self._open:
                    break
            elif byte == 0x2C:
                self._copy_byte()
                self._key()
            else:
                self._copy_byte()
        if self._open:
            raise CodecError("JSON body", self.at, "it ends before its brackets are closed")
        return bytes(self._out)

    def _copy_byte(self) -> None:
        self._out.append(self._text[self.at])
        self.at += 1

    def _copy_string(self) -> None:
        start, text, end = self.at, self._text, len(self._text)
        at = start + 1
        while at < end and text[at] != 0x22:
            at += 2 if text[at] == 0x5C else 1
        if at >= end:
            raise CodecError("JSON body", start, "a string has no end")
        self.at = at + 1
        self._out += text[start : self.at]

    def _enter(self, byte: int) -> None:
        if len(self._open) + self._depth >= MAX_DEPTH:
            raise CodecError("JSON body", self.at, f"nested deeper than {MAX_DEPTH}")
        self._open.append(byte)
        self._copy_byte()
        self._key()

    def _leave(self, byte: int) -> None:
        if not self._open or self._open.pop() != (0x7B if byte == 0x7D else 0x5B):
            raise CodecError("JSON body", self.at, "its brackets do not match")
        self._copy_byte()

    def _key(self) -> None:
        """Quote the key at the current position if it is bare or an object."""
        text, end = self._text, len(self._text)
        while self.at < end and text[self.at] in SPACE:
            self.at += 1
        if not self._open or self._open[-1] != 0x7B or self.at >= end:
            return
        if text[self.at] == 0x7B:
            self._object_key()
        elif text[self.at] in BARE_KEY:
            start = self.at
            while self.at < end and text[self.at] in BARE_KEY:
                self.at += 1
            self._out += b'"' + text[start : self.at] + b'"'

    def _object_key(self) -> None:
        if self._depth:
            raise CodecError("JSON body", self.at, "an object key inside an object key")
        inner = _Standardizer(self._text, self.at, len(self._open))
        try:
            key = inner.object_or_value().decode()
        except UnicodeError as error:
            raise CodecError("JSON body", self.at, f"an object key: {error}") from error
        self.at = inner.at
        self._out += msgspec.json.encode(key)
