"""Commands: both header encodings round trip, invalid headers are rejected."""

from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from rocketmq_aio.errors import CodecError
from rocketmq_aio.protocol.codes import CLIENT_VERSION, ONEWAY_FLAG, RESPONSE_FLAG
from rocketmq_aio.protocol.command import Command, decode_command, encode_command
from tests.unit.protocol.wire_files import command_in

JSON, BINARY = 0, 1
Int32 = st.integers(-(2**31), 2**31 - 1)
Fields = st.dictionaries(st.text(max_size=20), st.text(max_size=40), max_size=6)


def binary(remark: bytes = b"", fields: bytes = b"", **lengths: int) -> bytes:
    """Return a binary header, written as the byte table says; *lengths* may lie."""
    return (
        (105).to_bytes(2, "big")
        + b"\x00"
        + (513).to_bytes(2, "big")
        + (7).to_bytes(4, "big")
        + (1).to_bytes(4, "big")
        + lengths.get("remark_length", len(remark)).to_bytes(4, "big", signed=True)
        + remark
        + lengths.get("fields_length", len(fields)).to_bytes(4, "big", signed=True)
        + fields
    )


def field(name: bytes, value: bytes) -> bytes:
    return len(name).to_bytes(2, "big") + name + len(value).to_bytes(4, "big") + value


# --- round trips --------------------------------------------------------------------------------


@given(st.integers(-(2**15), 2**31 - 1), Int32, Int32, st.none() | st.text(), Fields, st.binary())
def test_json_commands_round_trip(
    code: int, opaque: int, flag: int, remark: str | None, fields: dict[str, str], body: bytes
) -> None:
    frame = encode_command(Command(code, opaque, flag, remark, body=body), fields, version=399)
    read = command_in(frame)

    assert frame[4] == JSON
    assert (read.code, read.opaque, read.flag, read.remark) == (code, opaque, flag, remark)
    assert (read.ext_fields(), read.version, read.body) == (fields, 399, body)


@given(st.integers(-(2**15), 2**15 - 1), Int32, Int32, st.none() | st.text(), Fields, st.binary())
def test_binary_commands_round_trip(
    code: int, opaque: int, flag: int, remark: str | None, fields: dict[str, str], body: bytes
) -> None:
    command = Command(code, opaque, flag, remark, body=body)
    frame = encode_command(command, fields, binary=True)
    read = command_in(frame)

    assert frame[4] == BINARY
    assert (read.code, read.opaque, read.flag, read.remark) == (code, opaque, flag, remark or None)
    assert (read.version, read.body) == (CLIENT_VERSION, body)
    # Empty values are left out: brokers do not keep them, and refuse a signature over them.
    assert read.ext_fields() == {name: value for name, value in fields.items() if value}


@pytest.mark.parametrize("code", [0x8000, 200_050, 2**31 - 1])
def test_a_code_above_32767_gets_a_json_header(code: int) -> None:
    frame = encode_command(Command(code, 1), {"a": "b"}, binary=True)

    assert frame[4] == JSON
    assert command_in(frame).code == code


def test_flag_bits_mark_responses_and_oneway_requests() -> None:
    answer, oneway, request = (Command(1, 1, flag) for flag in (RESPONSE_FLAG, ONEWAY_FLAG, 0))

    assert (answer.is_response, answer.is_oneway) == (True, False)
    assert (oneway.is_response, oneway.is_oneway) == (False, True)
    assert (request.is_response, request.is_oneway) == (False, False)


@pytest.mark.parametrize("encoding", [False, True], ids=["json", "binary"])
def test_a_remark_with_invalid_unicode_is_replaced(encoding: bool) -> None:
    frame = encode_command(Command(1, 1, 1, "file \udcff"), {}, binary=encoding)

    assert command_in(frame).remark == "file ?"


@pytest.mark.parametrize("encoding", [False, True], ids=["json", "binary"])
@pytest.mark.parametrize(
    "fields",
    [{"a": "\ud800"}, {"\ud800": "a"}, {"a": "x" * 2**24}],
    ids=["value", "name", "longer-than-a-header"],
)
def test_a_field_that_is_too_long_is_a_codec_error(encoding: bool, fields: dict[str, str]) -> None:
    with pytest.raises(CodecError, match="header"):
        encode_command(Command(1, 1), fields, binary=encoding)


@pytest.mark.parametrize(
    ("command", "fields"),
    [(Command(1, 2**31), {}), (Command(-(2**15) - 1, 1), {}), (Command(1, 1), {"a" * 2**15: "b"})],
    ids=["opaque", "code", "name-of-a-field"],
)
def test_a_number_that_does_not_fit_a_binary_header_is_not_sent(
    command: Command, fields: dict[str, str]
) -> None:
    with pytest.raises(CodecError, match="header to send"):
        encode_command(command, fields, binary=True)


# --- JSON headers -------------------------------------------------------------------------------


def test_the_shortest_json_header_is_enough() -> None:
    command = decode_command(JSON, b'{"code":0,"opaque":7}', b"")

    assert (command.code, command.opaque, command.flag, command.remark) == (0, 7, 0, None)
    assert (command.ext_fields(), command.version, command.body) == ({}, 0, b"")


def test_unknown_keys_are_ignored() -> None:
    command = decode_command(JSON, b'{"code":0,"x":[{}],"opaque":7,"language":"RUST"}', b"")

    assert command.opaque == 7


@pytest.mark.parametrize("nothing", [b'"extFields":null', b'"extFields":{}'])
def test_null_and_empty_ext_fields_are_no_fields(nothing: bytes) -> None:
    command = decode_command(JSON, b'{"code":0,"opaque":7,"remark":null,' + nothing + b"}", b"")

    assert command.ext_fields() == {}
    assert command.remark is None


def test_ext_fields_of_other_json_types_are_read_as_text() -> None:
    fields = b'{"i":-5,"big":18446744073709551616,"t":true,"f":false,"d":1.5,"n":null,"s":"x"}'
    command = decode_command(JSON, b'{"code":0,"opaque":7,"extFields":' + fields + b"}", b"")

    assert command.ext_fields() == {
        "i": "-5",
        "big": "18446744073709551616",
        "t": "true",
        "f": "false",
        "d": "1.5",
        "s": "x",
    }


def test_the_last_duplicate_json_key_wins() -> None:
    header = b'{"code":1,"code":2,"opaque":7,"extFields":{"a":"1","a":"2"}}'
    command = decode_command(JSON, header, b"")

    assert (command.code, command.ext_fields()) == (2, {"a": "2"})


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"7",
        b"HTTP/1.1 400",
        b'{"opaque":7}',
        b'{"code":0}',
        b'{"code":"0","opaque":7}',
        b'{"code":0.5,"opaque":7}',
        b'{"code":NaN,"opaque":7}',
        b'{"code":1e400,"opaque":7}',
        b'{"code":' + b"9" * 5000 + b',"opaque":7}',
        b'{"code":0,"opaque":null}',
        b'{"code":0,"opaque":7,"remark":5}',
        b'{"code":0,"opaque":7,"remark":"\xff\xfe"}',
        b'{"code":0,"opaque":7,"remark":"\\ud800"}',
        b'{"code":0,"opaque":7,"remark":"\x01"}',
        b'{"code":0,"opaque":7,"extFields":{"a":"\\udc00"}}',
        b'{"code":0,"opaque":7} x',
        # Deeper than the stack: from Python 3.14 on, its size is the bound of recursion in C.
        b'{"code":0,"opaque":7,"x":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}",
        b'{"code":0,"opaque":7,"extFields":' + b'{"a":' * 1_000_000 + b"1" + b"}" * 1_000_001,
    ],
)
def test_an_invalid_json_header_is_a_codec_error(header: bytes) -> None:
    with pytest.raises(CodecError, match="JSON header at byte 8") as caught:
        decode_command(JSON, header, b"")

    assert (caught.value.field, caught.value.position) == ("JSON header", 8)


@pytest.mark.parametrize(
    "fields",
    [
        b'"text"',
        b"5",
        b"[]",
        b'{"a":{}}',
        b'{"a":[1]}',
        b'{"a":"\xff"}',
        b'{"\xff":"a"}',
        b'{"a":1e400}',
        b'{"a":' + b"9" * 5000 + b"}",
    ],
)
def test_invalid_ext_fields_are_a_codec_error(fields: bytes) -> None:
    command = decode_command(JSON, b'{"code":0,"opaque":7,"extFields":' + fields + b"}", b"")

    with pytest.raises(CodecError, match="extFields at byte 8"):
        command.ext_fields()


# --- binary headers -----------------------------------------------------------------------------


def test_a_binary_header_is_read() -> None:
    command = decode_command(BINARY, binary("主题".encode(), field(b"topic", b"orders")), b"body")

    assert (command.code, command.opaque, command.flag, command.version) == (105, 7, 1, 513)
    assert (command.remark, command.ext_fields(), command.body) == (
        "主题",
        {"topic": "orders"},
        b"body",
    )


def test_the_last_duplicate_binary_field_wins() -> None:
    header = binary(fields=field(b"a", b"1") + field(b"b", b"x") + field(b"a", b"2"))

    assert decode_command(BINARY, header, b"").ext_fields() == {"a": "2", "b": "x"}


def test_binary_fields_may_be_empty() -> None:
    header = binary(fields=field(b"", b"") + field(b"a", b""))

    assert decode_command(BINARY, header, b"").ext_fields() == {"": "", "a": ""}


def test_a_truncated_binary_header_is_a_codec_error() -> None:
    header = binary(b"remark", field(b"name", b"value"))
    for cut in range(len(header)):
        with pytest.raises(CodecError, match=r"binary .* at byte"):
            decode_command(BINARY, header[:cut], b"")


@pytest.mark.parametrize(
    ("header", "name", "position"),
    [
        (binary(remark_length=-1), "binary header", 8),
        (binary(remark_length=-18), "binary header", 8),
        (binary(remark_length=-(2**31)), "binary header", 8),
        (binary(remark_length=2**31 - 1), "binary header", 8),
        (binary(b"remark", remark_length=2), "binary header", 8),
        (binary(fields_length=-1), "binary header", 8),
        (binary(fields_length=1), "binary header", 8),
        (binary(fields=field(b"a", b"b"), fields_length=5), "binary header", 8),
        (binary(b"\xff\xfe"), "binary header", 8),
        (binary(fields=field(b"\xff", b"b")), "binary header", 8),
        (binary(fields=field(b"a", b"\xff")), "binary header", 8),
        (binary(fields=b"\x00"), "binary ext field", 31),
        (binary(fields=b"\x00\x05ab"), "binary ext field", 31),
        (binary(fields=b"\xff\xffab\0\0\0\0"), "binary ext field", 31),
        (binary(fields=b"\x00\x01a\x00\x00"), "binary ext field", 31),
        (binary(fields=b"\x00\x01a\x00\x00\x00\x05abc"), "binary ext field", 36),
        (binary(fields=b"\x00\x01a\xff\xff\xff\xffabc"), "binary ext field", 36),
    ],
)
def test_false_lengths_in_a_binary_header_are_a_codec_error(
    header: bytes, name: str, position: int
) -> None:
    with pytest.raises(CodecError) as caught:
        decode_command(BINARY, header, b"")

    assert (caught.value.field, caught.value.position) == (name, position)


@pytest.mark.parametrize("encoding", [2, 3, 127, 255])
def test_an_unknown_encoding_is_a_codec_error(encoding: int) -> None:
    with pytest.raises(CodecError, match="header encoding at byte 4") as caught:
        decode_command(encoding, b'{"code":0,"opaque":7}', b"")

    assert str(encoding) in caught.value.reason


@pytest.mark.parametrize(
    "make",
    [
        lambda size: binary(fields=field(b"k", b"v") * size),
        lambda size: binary(fields=b"".join(field(b"%d" % n, b"v") for n in range(size))),
    ],
    ids=["one-name", "many-names"],
)
def test_a_header_of_many_fields_is_read_whole(make: Callable[[int], bytes]) -> None:
    fields = decode_command(BINARY, make(5000), b"").ext_fields()

    assert set(fields.values()) == {"v"}
