"""fastjson dialect: converts JSON with numbers or objects as keys to standard JSON.

    {0:"a"}                       -> {"0":"a"}
    {{"queueId":0,...}:5}         -> {"{\\"queueId\\":0,...}":5}

One pass over the text.  An object key inside an object key is an error: each level would double
the escapes.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final, TypeVar

import msgspec

from rocketmq_aio.errors import CodecError
from rocketmq_aio.model.codec import MAKING_DECODER

T = TypeVar("T")

MAX_DEPTH: Final = 64
SPACE: Final = b" \t\r\n"
KEY: Final = re.compile(rb"[ \t\r\n]*([-+.\w]*)")  # a bare one, or where another one begins
# What is copied as it is: numbers, strings without escapes, and commas before anything but a key
# that has to be quoted.  Each repetition takes memory, so that they have a bound.
RUN: Final = re.compile(
    rb'(?:[^"{}\[\],]+|"[^"\\]*"|,(?![ \t\r\n]*(?:\{|[-+.\w]+[ \t\r\n]*:))){1,64}'
)
STRING_MARK: Final = re.compile(rb'"|(?:\\.){1,64}', re.DOTALL)  # its end, or escapes
READ_ERRORS: Final = (msgspec.MsgspecError, RecursionError, UnicodeError)


@cache
def json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """Return the decoder of *kind*, which takes numbers in texts; any thread may call this."""
    with MAKING_DECODER:
        return msgspec.json.Decoder(kind, strict=False)


def read_body(body: bytes, kind: type[T]) -> T:
    """Return a JSON body, standard or fastjson, as *kind*; CodecError if it is neither."""
    decoder: msgspec.json.Decoder[T] = json_decoder(kind)  # type: ignore[arg-type]  # has a hash
    try:
        return decoder.decode(body)
    except READ_ERRORS:
        pass
    try:
        return decoder.decode(to_standard(body))
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
            if byte in b"{[":
                self._enter(byte)
            elif byte in b"}]":
                self._leave(byte)
                if not self._open:
                    break
            elif (run := RUN.match(text, self.at)) is not None:
                self._out += run[0]
                self.at = run.end()
            elif byte == 0x22:
                self._copy_string()
            else:  # a comma
                self._copy_to_key(byte)
        if self._open:
            raise CodecError("JSON body", self.at, "it ends before its brackets are closed")
        return bytes(self._out)

    def _copy_string(self) -> None:
        start, text = self.at, self._text
        mark = STRING_MARK.search(text, start + 1)
        while mark is not None and mark[0] != b'"':
            mark = STRING_MARK.search(text, mark.end())
        if mark is None:
            raise CodecError("JSON body", start, "a string has no end")
        self.at = mark.end()
        self._out += text[start : self.at]

    def _enter(self, byte: int) -> None:
        if len(self._open) + self._depth >= MAX_DEPTH:
            raise CodecError("JSON body", self.at, f"nested deeper than {MAX_DEPTH}")
        self._open.append(byte)
        self._copy_to_key(byte)

    def _leave(self, byte: int) -> None:
        if not self._open or self._open.pop() != (0x7B if byte == 0x7D else 0x5B):
            raise CodecError("JSON body", self.at, "its brackets do not match")
        self._out.append(byte)
        self.at += 1

    def _copy_to_key(self, byte: int) -> None:
        """Copy *byte*, and the key that follows it in an object; quote that unless it is quoted."""
        self._out.append(byte)
        self.at += 1
        if not self._open or self._open[-1] != 0x7B:
            return
        key = KEY.match(self._text, self.at)
        assert key is not None
        self.at = key.start(1)
        if key[1]:
            self._out += b'"' + key[1] + b'"'
            self.at = key.end()
        elif self._text.startswith(b"{", self.at):
            self._object_key()

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
