"""Recorded bytes, broken at random: they are read, or refused with a CodecError, and nothing else.

``HYPOTHESIS_PROFILE=fuzz`` tries many more and new ones (see tests/unit/conftest.py).
"""

import zlib
from collections.abc import Callable, Sequence
from typing import Final

import pytest
from hypothesis import given, strategies as st

from rocketmq_aio.errors import CodecError
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.properties import encode_properties, find_property, parse_properties
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol import bodies
from rocketmq_aio.protocol.bodies import queue_table, read_reset_offsets, read_route
from rocketmq_aio.protocol.command import Command, decode_command
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.frame import FrameDecoder
from rocketmq_aio.protocol.header import read_header
from rocketmq_aio.protocol.record import decode_messages
from tests.unit.costs import cpu_seconds, peak_bytes
from tests.unit.protocol.declared import all_headers
from tests.unit.protocol.wire_files import RECORDED, command_in, load
from tests.unit.stored import INNER, Stored, batch_entry

QUEUE: Final = MessageQueue("TopicTest", "broker-a", 3)
MAX_FRAME: Final = 1024 * 1024
MAX_INFLATED: Final = 1024 * 1024
NASTY: Final = [
    *[value.to_bytes(4, "big") for value in (0, 1, 3, 2**24, 2**31 - 1, 2**31, 2**32 - 1)],
    *[b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b"\x01", b"\x02", b"\xff", b"\xc3\x28"],
    *[b"NaN", b"1e999", b"null", b"true", b"{{", b'"\\ud800"', b"9" * 30, b'{"$ref":"$"}'],
]

FRAMES: Final = sorted(
    bytes.fromhex(exchange[half]["hex"])
    for recorded in RECORDED.values()
    for exchange in recorded["exchanges"]
    for half in ("request", "response")
    if exchange.get(half)
)
BODIES: Final = sorted({body for body in (command_in(f).body for f in FRAMES) if body[:1] == b"{"})
RECORDS: Final = sorted(
    bytes.fromhex(record["hex"]) for record in load("frames/golden/records.json")["records"]
)
BODY_KINDS: Final = tuple(bodies.Body.__subclasses__())
ACCESSORS: Final = tuple(
    name for name, member in vars(MessageExt).items() if type(member).__name__ == "property"
)
Outcome = list[object]


@st.composite
def broken(draw: st.DrawFn, seeds: Sequence[bytes]) -> bytes:
    """Draw one of *seeds* with a few places overwritten, cut out or put in."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        gone = draw(st.sampled_from([0, 0, 1, 4, 8]))
        data[at : at + gone] = draw(st.sampled_from(NASTY) | st.binary(max_size=8))
    return bytes(data[: draw(st.sampled_from([len(data)]) | st.integers(0, len(data)))])


def refused_or(call: Callable[..., object], *args: object) -> object:
    """Return what *call* returns, or the text of its CodecError; any other error passes."""
    try:
        return call(*args)
    except CodecError as fault:
        return str(fault)


def said(command: Command) -> Outcome:
    """Return all that can be read of *command*."""
    read: Outcome = [command.code, command.opaque, command.flag, command.remark, command.body]
    read.append(refused_or(command.ext_fields))
    read += [refused_or(read_header, command, kind) for kind in all_headers()]
    return read


def understood(chunks: Sequence[bytes]) -> Outcome:
    """Return all that a connection would make of *chunks*, and how it would end."""
    outcome: Outcome = []
    splitter = FrameDecoder(
        lambda *parts: outcome.append(said(decode_command(*parts))), max_frame_bytes=MAX_FRAME
    )
    for chunk in chunks:
        end = refused_or(splitter.feed, chunk)
        if end is not None:
            return [*outcome, end]
    return outcome


@given(st.lists(broken(FRAMES), min_size=1, max_size=3), st.integers(1, 400))
def test_broken_frames_decode_or_raise_codec_error(frames: list[bytes], step: int) -> None:
    stream = b"".join(frames)
    chunks = [stream[at : at + step] for at in range(0, len(stream), step)]

    assert understood(chunks) == understood([stream])


@given(st.binary(max_size=200), st.integers(0, 2))
def test_any_header_decodes_or_raises_codec_error(header: bytes, encoding: int) -> None:
    refused_or(lambda: said(decode_command(encoding, header, b"")))


@given(broken(BODIES))
def test_broken_bodies_decode_or_raise_codec_error(body: bytes) -> None:
    for kind in BODY_KINDS:
        refused_or(read_body, body, kind)
    refused_or(read_route, body)
    refused_or(read_reset_offsets, body)


@given(st.lists(broken(RECORDS), min_size=1, max_size=4))
def test_broken_messages_decode_or_raise_codec_error(records: list[bytes]) -> None:
    messages, fault = decode_messages(b"".join(records), QUEUE, limit=MAX_INFLATED)

    assert fault is None or isinstance(fault, CodecError)
    for message in messages:
        assert message.topic == QUEUE.topic
        assert repr(message)
        for name in ACCESSORS:
            refused_or(getattr, message, name)


@given(st.lists(broken(RECORDS), min_size=1, max_size=4))
def test_broken_messages_do_not_read_past_the_end(records: list[bytes]) -> None:
    block = b"".join(records)
    messages, fault = decode_messages(block, QUEUE, limit=MAX_INFLATED)
    alone = [m.store_size for m in messages if m.sys_flag & INNER != INNER]

    assert sum(alone) <= (len(block) if fault is None else fault.position)


@given(
    st.dictionaries(
        st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1),
        st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1),
        max_size=8,
    ),
    st.booleans(),
)
def test_properties_are_read_as_they_were_written(
    properties: dict[str, str], final_separator: bool
) -> None:
    raw = encode_properties(properties).encode()
    raw = raw if final_separator else raw.removesuffix(b"\x02")

    assert parse_properties(raw) == properties
    for name, value in properties.items():
        assert find_property(raw, name.encode() + b"\x01") == value


@given(
    st.lists(
        st.sampled_from([b"A", b"B", b"TAGS", b"\x01", b"\x02", b"\xff", "é".encode()]), max_size=20
    ).map(b"".join)
)
def test_find_property_agrees_with_parse_properties(raw: bytes) -> None:
    everything = parse_properties(raw)

    assert all(everything.keys())
    assert all(everything.values())
    for name in ("A", "B", "TAGS", "AB", "missing"):
        assert find_property(raw, name.encode() + b"\x01") == everything.get(name)


# --- 64 KiB cost at most 100 ms, and 64 times their size ------------------------------------------

SIZE: Final = 64 * 1024
Read = Callable[[bytes], object]


def fields(header: bytes) -> object:
    return decode_command(1, bytes(17) + len(header).to_bytes(4, "big") + header, b"").ext_fields()


def offsets(text: bytes) -> object:
    return refused_or(read_reset_offsets, text)


def messages_in(block: bytes) -> object:
    return decode_messages(block, MessageQueue("orders", "broker-a", 3))


TABLE: Final = {MessageQueue("t", "b", number): 1 for number in range(1500)}
COSTLY: Final[dict[str, tuple[Read, bytes]]] = {
    "binary-fields": (
        fields,
        b"".join(b"\x00\x02%b\x00\x00\x00\x00" % n.to_bytes(2, "big") for n in range(0x7F))
        * (SIZE // (8 * 0x7F)),
    ),
    "json-fields": (
        lambda text: decode_command(0, text, b"").ext_fields(),
        b'{"code":1,"opaque":1,"extFields":{"0":""%b}}'
        % b"".join(b',"%x":1' % n for n in range(SIZE // 9)),
    ),
    "object-keys": (offsets, b'{"offsetTable":' + bytes(queue_table(TABLE)) + b"}"),
    "nested-keys": (offsets, b"{" * SIZE),
    "nested-arrays": (offsets, b"[" * SIZE),
    "open-string": (offsets, b'{0:"' + b"\\" * SIZE),
    "properties": (
        lambda raw: parse_properties(raw),
        b"".join(b"%x\x01v\x02" % number for number in range(SIZE // 7)),
    ),
    "messages": (messages_in, Stored(body=b"", properties=b"").to_bytes() * (SIZE // 97)),
    "inner-batch": (
        messages_in,
        Stored(body=batch_entry(b"") * (SIZE // 22), sys_flag=INNER).to_bytes(),
    ),
    "separators": (lambda raw: parse_properties(raw), b"\x02\x01" * (SIZE // 2)),
}


@pytest.mark.parametrize(("read", "data"), COSTLY.values(), ids=COSTLY.keys())
def test_costly_input_takes_bounded_time(read: Read, data: bytes) -> None:
    assert SIZE // 2 < len(data) < 2 * SIZE
    assert cpu_seconds(lambda: read(data)) < 0.5 * len(data) / SIZE
    assert peak_bytes(lambda: read(data)) < 64 * len(data)


def test_a_compressed_batch_of_empty_messages_is_bounded() -> None:
    bomb = zlib.compress(batch_entry(b"") * 1_000_000)
    block = Stored(body=bomb, sys_flag=INNER | 1).to_bytes()

    assert cpu_seconds(lambda: messages_in(block)) < 2
