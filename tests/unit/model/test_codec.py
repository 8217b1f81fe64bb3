"""Codecs: values round trip, and every failure is a PayloadError."""

from __future__ import annotations

import asyncio
import copy
import datetime as dt
import pickle
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, make_dataclass
from typing import Any, Literal, TypedDict

import msgpack
import msgspec
import pytest
from hypothesis import given, strategies as st

from rocketmq_aio.errors import ConfigError, PayloadError
from rocketmq_aio.model.codec import (
    Codec,
    JSONCodec,
    MsgpackCodec,
    RawCodec,
    check_codec,
    decode_with,
    encode_with,
)
from rocketmq_aio.model.message import MessageExt, decode_all
from rocketmq_aio.model.values import MessageQueue
from tests.unit.costs import MIB, cpu_seconds, peak_bytes

QUEUE = MessageQueue("orders", "broker-a", 3)
NOW = dt.datetime(2026, 5, 4, 3, 2, 1, 500_000, tzinfo=dt.UTC)


class Paid(msgspec.Struct, tag=True):
    order: int
    amount: float


class Shipped(msgspec.Struct, tag=True):
    order: int
    at: dt.datetime


@dataclass
class Line:
    article: str
    count: int


@dataclass
class Order:
    id: int
    lines: list[Line]
    note: str | None = None


class Address(TypedDict):
    city: str


class Tagged(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """A kind of event."""


class Picky(msgspec.Struct):
    size: int

    def __post_init__(self) -> None:
        if self.size > 10:
            raise LookupError(self.size)  # msgspec lets it pass


class Backwards:
    """A codec of an application."""

    def encode(self, value: str) -> bytes:
        return value[::-1].encode()

    def decode(self, body: bytes) -> str:
        if body == b"gub":
            raise LookupError("a bug")
        return body.decode()[::-1]


def received(body: bytes, offset: int = 0) -> MessageExt:
    return MessageExt("orders", body, QUEUE, offset, b"", b"")


each_typed = pytest.mark.parametrize("make", [JSONCodec, MsgpackCodec])


# --- there and back ------------------------------------------------------------------------------


@each_typed
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Order, Order(7, [Line("hat", 2)])),
        (Paid, Paid(7, 1.5)),
        (Paid | Shipped, Paid(7, 1.5)),
        (Paid | Shipped, Shipped(7, NOW)),
        (list[Order], [Order(7, []), Order(8, [], "soon")]),
        (dict[str, list[int]], {"a": [1, 2]}),
        (Address, {"city": "Köln"}),
        (dt.datetime, NOW),
        (int | None, None),
        (bytes, b"\x00\xff"),
    ],
)
def test_a_value_is_decoded_to_its_type(make: Any, kind: Any, value: object) -> None:  # noqa: ANN401
    codec = make(kind)
    decoded = codec.decode(codec.encode(value))

    assert decoded == value
    assert type(decoded) is type(value)


SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text()
FLOATS = st.floats(allow_nan=False, allow_infinity=False)


def nested(scalars: st.SearchStrategy[Any], keys: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(scalars, lambda one: st.lists(one) | st.dictionaries(keys, one))


@given(nested(SCALARS | FLOATS, st.text()))
def test_all_json_values_round_trip(value: object) -> None:
    codec = JSONCodec()

    assert codec.decode(codec.encode(value)) == value


@given(nested(SCALARS | FLOATS | st.binary(), st.text() | st.integers(-(2**63), 2**64 - 1)))
def test_all_messagepack_values_round_trip(value: object) -> None:
    codec = MsgpackCodec()

    assert codec.decode(codec.encode(value)) == value


def test_without_a_type_messagepack_has_times_and_extensions() -> None:
    codec, value = MsgpackCodec(), {"at": NOW, "shape": msgpack.ExtType(5, b"round")}

    assert codec.decode(codec.encode(value)) == value


def test_typed_and_untyped_messagepack_are_compatible() -> None:
    plain, typed = MsgpackCodec(), MsgpackCodec(Order)
    order = Order(7, [Line("hat", 2)])

    assert plain.decode(typed.encode(order)) == msgspec.to_builtins(order)
    assert typed.decode(plain.encode(msgspec.to_builtins(order))) == order


@pytest.mark.parametrize("value", [b"ab", bytearray(b"ab"), memoryview(b"ab")])
def test_raw_bytes_stay_as_they_are(
    value: Any,  # noqa: ANN401 - `bytes` to type checkers
) -> None:
    assert RawCodec().encode(value) == b"ab"
    assert RawCodec().decode(b"ab") == b"ab"


@pytest.mark.parametrize(
    ("codec", "text"),
    [
        (JSONCodec(), "JSONCodec()"),
        (JSONCodec(Order), "JSONCodec(Order)"),
        (MsgpackCodec(dict[str, int]), "MsgpackCodec(dict[str, int])"),
        (JSONCodec(int | None), "JSONCodec(int | None)"),
        (RawCodec(), "RawCodec()"),
    ],
)
def test_a_codec_has_a_repr_and_can_be_pickled(codec: Codec, text: str) -> None:
    for twin in (codec, pickle.loads(pickle.dumps(codec)), copy.deepcopy(codec)):
        assert repr(twin) == text


# --- what cannot be read -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff", b'"\xff"', b"1 2", b"[" * 100_000, b"1e999", b"9" * 10_000]
)
@pytest.mark.parametrize("kind", [Any, Order, list[int]])
def test_invalid_json_is_a_payload_error(body: bytes, kind: object) -> None:
    with pytest.raises(PayloadError, match=r"^JSONCodec"):
        JSONCodec(kind).decode(body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x91" * 100_000,
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\x7f\xff\xff\xff",
        b"\xa1\xff",
        b"\x01\x02",
        b"\x81\x90",
        b"\xd7\xff" + b"\xff" * 8,
        b"\xc7\x0c\xff\x00\x00\x00\x00\x7f" + b"\xff" * 7,
    ],
)
@pytest.mark.parametrize("kind", [Any, Order, list[int]])
def test_invalid_messagepack_is_a_payload_error(body: bytes, kind: object) -> None:
    with pytest.raises(PayloadError, match=r"^MsgpackCodec"):
        MsgpackCodec(kind).decode(body)


@pytest.mark.parametrize(
    "codec", [JSONCodec(), MsgpackCodec(), JSONCodec(Order), MsgpackCodec(Order)]
)
@given(body=st.binary(max_size=64))
def test_any_body_decodes_or_raises_payload_error(codec: Codec, body: bytes) -> None:
    with suppress(PayloadError):
        codec.decode(body)


@pytest.mark.parametrize(
    "claim", [b"\xdd\x7f\xff\xff\xff", b"\xdf\x7f\xff\xff\xff", b"\xc6\x7f\xff\xff\xff"]
)
@pytest.mark.parametrize("codec", [MsgpackCodec(), MsgpackCodec(list[int])])
def test_a_false_length_takes_no_memory(codec: Codec, claim: bytes) -> None:
    def read() -> None:
        with pytest.raises(PayloadError):
            codec.decode(claim + b"\x01")

    assert peak_bytes(read) < MIB


def test_a_type_mismatch_names_its_path() -> None:
    with pytest.raises(PayloadError) as caught:
        JSONCodec(Order).decode(b'{"id": "seven", "lines": []}')

    assert caught.value.codec == "JSONCodec(Order)"
    assert "Expected `int`, got `str` - at `$.id`" in caught.value.reason


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        (Literal["a"], "canary", "Invalid enum value"),
        (Literal[1], 90210, "Invalid enum value"),
        (dict[str, Literal["a"]], {"x": "canary - at `$.x"}, "Invalid enum value - at `$[...]`"),
        (Literal["a"], "canary - at `$.x`", "Invalid enum value"),
        (dict[Literal["a"], int], {"canary": 1}, "Invalid enum value - at `key` in `$`"),
        (Tagged, {"type": "canary"}, "Invalid value - at `$.type`"),
        (
            list[Tagged],
            [{"type": "Tagged", "canary": 1}],
            "Object contains unknown field - at `$[0]`",
        ),
    ],
)
@pytest.mark.parametrize("make", [JSONCodec, MsgpackCodec])
def test_an_error_has_nothing_of_the_body(
    make: Callable[[Any], Codec], kind: object, value: object, reason: str
) -> None:
    body = encode_with(make(Any), value)
    with pytest.raises(PayloadError) as caught:
        decode_with(make(kind), body)

    assert caught.value.reason == f"ValidationError: {reason}"
    shown = "".join(traceback.format_exception(caught.value))
    assert "canary" not in shown
    assert "90210" not in shown


def test_the_time_for_an_error_is_linear() -> None:
    def cost(marks: int) -> float:
        body = JSONCodec().encode(" - at `x" * marks)

        def fail() -> None:
            with pytest.raises(PayloadError):
                JSONCodec(Literal["a"]).decode(body)

        return cpu_seconds(fail)

    # 16 times as long where it grows with the body, 256 times where with its square.
    assert cost(32_000) < 64 * cost(2_000)


@pytest.mark.parametrize(
    ("codec", "value"),
    [
        (JSONCodec(), object()),
        (JSONCodec(), {(1, 2): 3}),
        (JSONCodec(), "\ud800"),
        (MsgpackCodec(), 2**64),
        (MsgpackCodec(), Order(1, [])),
        (MsgpackCodec(), dt.datetime(2026, 1, 1)),
        (MsgpackCodec(Order), 2**64),
        (RawCodec(), "text"),
    ],
)
def test_an_unencodable_value_is_a_payload_error(codec: Codec, value: object) -> None:
    with pytest.raises(PayloadError) as caught:
        codec.encode(value)

    assert caught.value.codec == repr(codec)


@pytest.mark.parametrize("codec", [JSONCodec(), MsgpackCodec(), JSONCodec(list)])
def test_a_recursive_value_is_a_payload_error(codec: Codec) -> None:
    endless: list[object] = []
    endless.append(endless)

    with pytest.raises(PayloadError):
        codec.encode(endless)


# --- what is no codec ----------------------------------------------------------------------------


@each_typed
@pytest.mark.parametrize(
    "kind",
    [
        *(3, lambda: 1, "no such name", (), Backwards, list[Backwards]),
        *(
            dict[str, Backwards | None],
            make_dataclass("Unknown", [("field", "msgspec.NoSuchName")]),
        ),
    ],
    ids=[
        *("number", "function", "text", "empty tuple", "class", "in a list", "in a union"),
        "unknown field type",
    ],
)
def test_an_unsupported_type_is_rejected_by_the_constructor(make: Any, kind: Any) -> None:  # noqa: ANN401
    with pytest.raises(ConfigError) as caught:
        make(kind)

    assert (caught.value.setting, caught.value.value) == ("kind", kind)


def test_an_unsupported_field_type_is_named() -> None:
    @dataclass
    class Wrapped:
        inner: Backwards

    with pytest.raises(ConfigError, match="cannot read Backwards"):
        JSONCodec(list[Wrapped])


class Tree(msgspec.Struct):
    children: list[Tree]


def test_recursive_types_are_supported() -> None:
    tree = Tree([Tree([])])
    codec = JSONCodec(Tree)

    assert codec.decode(codec.encode(tree)) == tree


@pytest.mark.parametrize("codec", [JSONCodec, Backwards, "json", object()])
def test_an_invalid_codec_is_rejected(codec: object) -> None:
    with pytest.raises(ConfigError) as caught:
        check_codec(codec)

    assert (caught.value.setting, caught.value.value) == ("codec", codec)


@pytest.mark.parametrize("codec", [None, JSONCodec(), Backwards()])
def test_a_custom_codec_need_not_derive_from_codec(codec: object) -> None:
    check_codec(codec)


# --- values of messages --------------------------------------------------------------------------


def test_without_a_codec_the_value_is_the_body() -> None:
    assert received(b"plain").value == b"plain"


def test_a_value_is_decoded_once_on_first_access() -> None:
    message = received(b'{"id": 7, "lines": []}')
    message.codec = JSONCodec(Order)
    untouched = message.decoded
    first = message.value

    assert untouched is msgspec.UNSET
    assert first == Order(7, [])
    assert message.value is first


def test_a_none_value_is_decoded_once() -> None:
    message = received(b"null")
    message.codec = JSONCodec()
    first = message.value
    message.codec = Backwards()

    assert (first, message.value) == (None, None)


def test_reading_a_value_that_cannot_be_decoded_raises_every_time() -> None:
    message = received(b"{")
    message.codec = JSONCodec(Order)

    for _ in range(2):
        with pytest.raises(PayloadError):
            _ = message.value
    assert message.body == b"{"


def test_a_message_can_be_pickled_with_its_codec_and_value() -> None:
    decoded, not_yet, plain = (received(b'{"id": 7, "lines": []}') for _ in range(3))
    decoded.codec = not_yet.codec = JSONCodec(Order)
    _ = decoded.value

    for message in (decoded, not_yet):
        assert pickle.loads(pickle.dumps(message)).value == Order(7, [])
    assert pickle.loads(pickle.dumps(plain)).value == plain.body


def test_any_exception_of_a_custom_codec_is_a_payload_error() -> None:
    with pytest.raises(PayloadError, match="LookupError: a bug") as read:
        decode_with(Backwards(), b"gub")
    with pytest.raises(PayloadError, match="TypeError") as written:
        encode_with(Backwards(), 5)
    with pytest.raises(PayloadError, match="LookupError: 11"):
        decode_with(JSONCodec(Picky), b'{"size": 11}')

    assert isinstance(read.value.__cause__, LookupError)
    assert isinstance(written.value.__cause__, TypeError)


def test_a_custom_codec_whose_texts_raise_raises_a_payload_error() -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise LookupError

    class Failing:
        def __repr__(self) -> str:
            raise LookupError

        def encode(self, value: object) -> bytes:
            raise MuteError

        def decode(self, body: bytes) -> object:
            raise MuteError

    with pytest.raises(PayloadError, match="Failing: MuteError"):
        decode_with(Failing(), b"x")
    with pytest.raises(PayloadError, match="Failing: MuteError"):
        encode_with(Failing(), 1)


@pytest.mark.parametrize("kind", [asyncio.CancelledError, GeneratorExit])
def test_cancelled_error_or_generator_exit_of_a_codec_is_a_payload_error(
    kind: type[BaseException],
) -> None:
    class Leaking(Backwards):
        def encode(self, value: str) -> bytes:
            raise kind

        def decode(self, body: bytes) -> str:
            raise kind

    with pytest.raises(PayloadError, match=kind.__name__):
        decode_with(Leaking(), b"x")
    with pytest.raises(PayloadError, match=kind.__name__):
        encode_with(Leaking(), "x")


def test_a_payload_error_of_a_codec_is_not_wrapped() -> None:
    class Strict(Backwards):
        def decode(self, body: bytes) -> str:
            raise PayloadError("strict", "never")

    with pytest.raises(PayloadError, match=r"^strict: never$"):
        decode_with(Strict(), b"x")


def test_decode_all_separates_undecodable_messages() -> None:
    messages = [received(body, at) for at, body in enumerate([b"1", b"x", b"2", b'"3"'])]
    good, bad = decode_all(JSONCodec(int), messages)

    assert [message.value for message in good] == [1, 2]
    assert [message.queue_offset for message, _ in bad] == [1, 3]
    assert all(isinstance(error, PayloadError) for _, error in bad)
    assert decode_all(JSONCodec(), []) == ([], [])
