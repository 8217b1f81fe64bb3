"""Codecs: a value of the application becomes the bytes of a body, and a body a value.

None of them runs code that a message brings along, or builds more than a body has bytes for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial
from types import NoneType
from typing import Any, Final, Generic, Protocol, cast, overload, runtime_checkable

import msgspec

from rocketmq_aio.model.errors import ConfigError, PayloadError

if sys.version_info >= (3, 13):
    from typing import TypeVar
else:
    from typing_extensions import TypeVar  # with a default

V = TypeVar("V", default=Any)  # what a codec makes of bodies
V_co = TypeVar("V_co", covariant=True, default=Any)

FAULTS: Final = (ValueError, TypeError, OverflowError, RecursionError)  # msgspec's are ValueErrors
BUILT_OF: Final = (bool, int, float, str, bytes, list, dict, NoneType)


@runtime_checkable
class Codec(Protocol[V]):
    """What ``codec=`` takes; one of your own need not derive from it.

    ``Codec[Order]`` writes and reads values of type ``Order``, a plain ``Codec`` those of any type.

    Whatever the two raise arrives as `PayloadError`.  Values are decoded where they are read, also
    in threads: keep no state.
    """

    def encode(self, value: V) -> bytes:
        """Return the body of a message that carries *value*."""
        ...

    def decode(self, body: bytes) -> V:
        """Return the value that *body* holds."""
        ...


class _Checked(Generic[V]):
    """A codec made of two functions, whose failures are told as `PayloadError`."""

    def __init__(
        self, kind: object, write: Callable[[V], bytes], read: Callable[[bytes], V]
    ) -> None:
        self.kind = kind
        self._write = write
        self._read = read

    def encode(self, value: V) -> bytes:
        """Return the body of a message that carries *value*.

        :raises PayloadError: it cannot be written
        """
        try:
            return self._write(value)
        except FAULTS as error:
            raise _fault(self, error) from error

    def decode(self, body: bytes) -> V:
        """Return the value that *body* holds.

        :raises PayloadError: it holds no value of this kind
        """
        try:
            return self._read(body)
        except FAULTS as error:
            raise _fault(self, error) from error

    def __repr__(self) -> str:
        kind = self.kind.__qualname__ if isinstance(self.kind, type) else str(self.kind)
        return f"{type(self).__name__}({'' if self.kind is Any else kind})"

    def __reduce__(self) -> tuple[object, ...]:  # messages that remember their codec are pickled
        return type(self), (self.kind,)


class JSONCodec(_Checked[V]):
    """JSON in UTF-8.

    :param kind: what bodies hold: a dataclass, a `msgspec.Struct`, a `TypedDict`, ``list[...]``, a
        union of them and so on; left out, whatever JSON holds
    :raises ConfigError: msgspec cannot read such a type
    """

    @overload
    def __init__(self: JSONCodec[Any]) -> None: ...
    @overload
    def __init__(self, kind: type[V]) -> None: ...
    @overload
    def __init__(self: JSONCodec[Any], kind: Any) -> None: ...  # noqa: ANN401 - unions are no types
    def __init__(self, kind: Any = Any) -> None:
        _check_kind(kind)
        super().__init__(kind, msgspec.json.Encoder().encode, msgspec.json.Decoder(kind).decode)


class MsgpackCodec(_Checked[V]):
    """MessagePack.

    Without *kind* an extension arrives as `msgpack.ExtType` and can be sent as one, and a
    timestamp is an aware `datetime`.

    :param kind: as for `JSONCodec`; left out, whatever MessagePack holds
    :raises ConfigError: msgspec cannot read such a type
    """

    @overload
    def __init__(self: MsgpackCodec[Any]) -> None: ...
    @overload
    def __init__(self, kind: type[V]) -> None: ...
    @overload
    def __init__(self: MsgpackCodec[Any], kind: Any) -> None: ...  # noqa: ANN401 - unions are no types
    def __init__(self, kind: Any = Any) -> None:
        if kind is Any:
            import msgpack  # only where it is used: it takes time to load

            # strict_map_key: what can be written can be read, and keys need not be text.
            read = partial(msgpack.unpackb, timestamp=3, strict_map_key=False)
            super().__init__(kind, _pack, read)
            return
        _check_kind(kind)
        decode = msgspec.msgpack.Decoder(kind).decode
        super().__init__(kind, msgspec.msgpack.Encoder().encode, decode)


class RawCodec(_Checked[bytes]):
    """Bytes as they are."""

    def __init__(self) -> None:
        super().__init__(Any, _as_bytes, bytes)

    def __reduce__(self) -> tuple[object, ...]:
        return RawCodec, ()


def check_codec(codec: object) -> None:
    """Refuse what is no codec.

    :raises ConfigError: it is something else, or a class instead of one of its objects
    """
    if codec is not None and (isinstance(codec, type) or not isinstance(codec, Codec)):
        raise ConfigError("codec", codec, "expected an object such as JSONCodec(Order)")


def encode_with(codec: Codec, value: object) -> bytes:
    """Return *value* as *codec*, which may be the application's own, writes it.

    :raises PayloadError: it cannot be written, whatever the codec raised
    """
    try:
        return codec.encode(value)
    except (PayloadError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # also a CancelledError, which no await has delivered
        raise _fault(codec, error) from error


def decode_with(codec: Codec, body: bytes) -> Any:  # noqa: ANN401 - see Codec
    """Return the value in *body* as *codec*, which may be the application's own, reads it.

    :raises PayloadError: it cannot be read, whatever the codec raised
    """
    try:
        return codec.decode(body)
    except (PayloadError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # also a CancelledError, which no await has delivered
        raise _fault(codec, error) from error


def _fault(codec: object, error: BaseException) -> PayloadError:
    return PayloadError(repr(codec), f"{type(error).__name__}: {error}")


def _pack(value: object) -> bytes:
    import msgpack

    return cast(bytes, msgpack.packb(value, datetime=True))


def _as_bytes(value: object) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"expected bytes, got {type(value).__name__}")
    return bytes(value)


def _check_kind(kind: object) -> None:
    try:
        strange = _first_custom(kind)
    except (TypeError, NameError) as error:
        raise ConfigError("kind", kind, str(error)) from error
    if strange is not None:
        reason = f"msgspec cannot read {strange.__qualname__}: use a dataclass or msgspec.Struct"
        raise ConfigError("kind", kind, reason)


def _first_custom(kind: object) -> type | None:
    """Return a class inside *kind* that no body could ever become."""
    parts: list[Any] = [msgspec.inspect.type_info(kind)]
    seen: set[int] = set()
    for part in parts:
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, msgspec.inspect.CustomType) and not _can_be(part.cls):
            return part.cls
        parts += _parts(part)
    return None


def _parts(info: Any) -> Iterable[Any]:  # noqa: ANN401 - any of msgspec's descriptions
    for name in info.__struct_fields__:
        value = getattr(info, name)
        yield from (
            each
            for each in (value if isinstance(value, tuple) else (value,))
            if isinstance(each, msgspec.inspect.Type | msgspec.inspect.Field)
        )


def _can_be(kind: type) -> bool:
    """An abstract class will do if something that bodies are made of is an instance of it."""
    return any(issubclass(each, kind) for each in BUILT_OF)
