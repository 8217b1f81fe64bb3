"""Codecs: encode values of the application to message bodies and decode them.

The built-in codecs never execute code from a body, and their memory use is bounded by its size.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from itertools import chain
from threading import Lock
from types import NoneType
from typing import Any, Final, Generic, NoReturn, Protocol, cast, overload, runtime_checkable

import msgspec

from rocketmq_aio.model.errors import ConfigError, PayloadError, repr_of, shown, text_of

if sys.version_info >= (3, 13):
    from typing import TypeVar
else:
    from typing_extensions import TypeVar  # with a default

V = TypeVar("V", default=Any)  # what a codec makes of bodies
V_co = TypeVar("V_co", covariant=True, default=Any)

# While msgspec makes the first decoder of a class, another thread that does crashes the process.
MAKING_DECODER: Final = Lock()

FAULTS: Final = (ValueError, TypeError, OverflowError, RecursionError)  # msgspec's are ValueErrors
# Before a value or a name of the body; its path, which has only names of the type, may follow.
QUOTING: Final = ("Invalid enum value", "Invalid value", "Object contains unknown field")
PATH: Final = " - at `"
PATHS: Final = ("$", "key` in `$")  # how they begin
BUILT_OF: Final = (bool, int, float, str, bytes, list, dict, NoneType)


@runtime_checkable
class Codec(Protocol[V]):
    """The interface of ``codec=``; a custom codec need not derive from it.

    ``Codec[Order]`` writes and reads values of type ``Order``, a plain ``Codec`` those of any type.

    Any exception becomes a `PayloadError`.  Values are decoded where they are read, also in
    threads: keep no state.
    """

    def encode(self, value: V) -> bytes:
        """Return the body of a message that carries *value*."""
        ...

    def decode(self, body: bytes) -> V:
        """Return the value in *body*."""
        ...


class _Checked(Generic[V]):
    """A codec made of two functions, whose failures become `PayloadError`."""

    def __init__(
        self, kind: object, write: Callable[[V], bytes], read: Callable[[bytes], V]
    ) -> None:
        self.kind = kind
        self._write = write
        self._read = read

    def encode(self, value: V) -> bytes:
        """Return the body of a message that carries *value*.

        :raises PayloadError: *value* cannot be encoded
        """
        try:
            return self._write(value)
        except FAULTS as error:
            _fail(self, error)

    def decode(self, body: bytes) -> V:
        """Return the value in *body*.

        :raises PayloadError: *body* is not of this kind
        """
        try:
            return self._read(body)
        except FAULTS as error:
            _fail(self, error)

    def __repr__(self) -> str:
        kind = self.kind.__qualname__ if isinstance(self.kind, type) else str(self.kind)
        return f"{type(self).__name__}({'' if self.kind is Any else kind})"

    def __reduce__(self) -> tuple[object, ...]:  # pickled with messages that have a codec
        return type(self), (self.kind,)


class JSONCodec(_Checked[V]):
    """JSON in UTF-8.

    :param kind: type of the values: a dataclass, a `msgspec.Struct`, a `TypedDict`, ``list[...]``,
        a union of them and so on; default: any JSON value
    :raises ConfigError: msgspec does not support the type
    """

    @overload
    def __init__(self: JSONCodec[Any]) -> None: ...
    @overload
    def __init__(self, kind: type[V]) -> None: ...
    @overload
    def __init__(self: JSONCodec[Any], kind: Any) -> None: ...  # noqa: ANN401 - unions are no types
    def __init__(self, kind: Any = Any) -> None:
        super().__init__(kind, msgspec.json.Encoder().encode, _reader(msgspec.json.Decoder, kind))


class MsgpackCodec(_Checked[V]):
    """MessagePack.

    Without *kind* extensions are `msgpack.ExtType` and timestamps aware `datetime` objects.

    :param kind: as for `JSONCodec`; default: any MessagePack value
    :raises ConfigError: msgspec does not support the type
    """

    @overload
    def __init__(self: MsgpackCodec[Any]) -> None: ...
    @overload
    def __init__(self, kind: type[V]) -> None: ...
    @overload
    def __init__(self: MsgpackCodec[Any], kind: Any) -> None: ...  # noqa: ANN401 - unions are no types
    def __init__(self, kind: Any = Any) -> None:
        if kind is Any:
            import msgpack  # imported on first use: it is slow

            # strict_map_key=False: keys of any type that can be encoded can be decoded.
            read = partial(msgpack.unpackb, timestamp=3, strict_map_key=False)
            super().__init__(kind, _pack, read)
            return
        decode = _reader(msgspec.msgpack.Decoder, kind)
        super().__init__(kind, msgspec.msgpack.Encoder().encode, decode)


class RawCodec(_Checked[bytes]):
    """Bytes as they are."""

    def __init__(self) -> None:
        super().__init__(Any, _as_bytes, bytes)

    def __reduce__(self) -> tuple[object, ...]:
        return RawCodec, ()


def check_codec(codec: object) -> None:
    """Check that *codec* is None or a codec.

    :raises ConfigError: it is not, or is a class instead of an instance
    """
    if codec is not None and (isinstance(codec, type) or not isinstance(codec, Codec)):
        raise ConfigError("codec", codec, "expected an object such as JSONCodec(Order)")


def encode_with(codec: Codec, value: object) -> bytes:
    """Encode *value* with *codec*, which may be the application's.

    :raises PayloadError: the codec raised any exception
    """
    try:
        return codec.encode(value)
    except (PayloadError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - a CancelledError, too: it is the codec's own
        _fail(codec, error)


def decode_with(codec: Codec, body: bytes) -> Any:  # noqa: ANN401 - see Codec
    """Decode *body* with *codec*, which may be the application's.

    :raises PayloadError: the codec raised any exception
    """
    try:
        return codec.decode(body)
    except (PayloadError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - a CancelledError, too: it is the codec's own
        _fail(codec, error)


def _fail(codec: object, error: BaseException) -> NoReturn:
    """Raise a `PayloadError` for *error*, without what msgspec quotes of the body."""
    reason = text_of(error)
    if type(error) is msgspec.ValidationError and str(error).startswith(QUOTING):
        start = next(each for each in QUOTING if str(error).startswith(each))
        path = reason.rpartition(PATH)[2]
        where = PATH + path if path.startswith(PATHS) and path.endswith("`") else ""
        raise PayloadError(repr_of(codec), f"ValidationError: {start}{where}") from None
    raise PayloadError(repr_of(codec), reason) from error


def _pack(value: object) -> bytes:
    import msgpack

    return cast(bytes, msgpack.packb(value, datetime=True))


def _as_bytes(value: object) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"expected bytes, got {type(value).__name__}")
    return bytes(value)


def _reader(decoder: Callable[[Any], Any], kind: object) -> Callable[[bytes], Any]:
    with MAKING_DECODER:
        _check_kind(kind)
        read: Callable[[bytes], Any] = decoder(kind).decode
    return read


def _check_kind(kind: object) -> None:
    try:
        unsupported = _first_custom(kind)
    except Exception as error:  # annotations are code of the application
        raise ConfigError("kind", kind, shown(text_of(error))) from error
    if unsupported is not None:
        name = getattr(unsupported, "__qualname__", unsupported)  # msgspec takes () as a class
        reason = f"msgspec cannot read {name}"
        raise ConfigError("kind", kind, f"{reason}: use a dataclass or msgspec.Struct")


def _first_custom(kind: object) -> type | None:
    """Return a class inside *kind* that msgspec cannot decode to."""
    parts: list[Any] = [msgspec.inspect.type_info(kind)]
    seen: set[int] = set()
    for part in parts:
        if id(part) in seen or not isinstance(part, msgspec.inspect.Type | msgspec.inspect.Field):
            continue
        seen.add(id(part))
        # A decoded value can be an instance of an abstract class.
        if isinstance(part, msgspec.inspect.CustomType) and not any(
            issubclass(each, part.cls) for each in BUILT_OF
        ):
            return part.cls
        values = [getattr(part, name) for name in part.__struct_fields__]
        parts += chain.from_iterable(v if isinstance(v, tuple) else (v,) for v in values)
    return None
