"""Costs of inputs: eight times as many bytes take about eight times as long, and little memory."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable
from typing import Final

import lz4.frame
import msgspec
import pytest
import zstandard

from rocketmq_aio.embedded.broker.filters import FilterError, compile_sql
from rocketmq_aio.errors import CodecError
from rocketmq_aio.model.properties import find_property, parse_properties
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.bodies import TopicRouteData, queue_table, read_reset_offsets
from rocketmq_aio.protocol.command import Command, decode_command
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.frame import FrameDecoder
from rocketmq_aio.protocol.namespaces import Namespace
from rocketmq_aio.protocol.receipt import parse_receipt, read_info
from rocketmq_aio.protocol.record import decode_batch, decode_messages
from rocketmq_aio.protocol.requests.pop import PopMessageResponse
from rocketmq_aio.remoting.response_errors import broker_error
from rocketmq_aio.spark.offsets import StreamOffset
from tests.unit.costs import MIB, cpu_seconds, peak_bytes
from tests.unit.stored import INNER, Stored, batch_entry

SMALL: Final = 16 * 1024
TIMES: Final = 8
GAP: Final = 4  # between linear, and an eighth of the square
FLOOR_SECONDS: Final = 0.001  # less is not measured well
MAX_RECORD: Final = 16 * MIB - 1024
QUEUE: Final = MessageQueue("orders", "broker-a", 3)
NAMESPACE: Final = Namespace("ns")
WORD: Final = b"9" * 1000

Read = Callable[[bytes], object]
Make = Callable[[int], bytes]


def refused(read: Read) -> Read:
    """Return *read*, which may refuse its input."""

    def call(data: bytes) -> object:
        try:
            return read(data)
        except (CodecError, FilterError) as error:
            return error

    return call


def binary_fields(data: bytes) -> object:
    header = bytes(17) + len(data).to_bytes(4, "big") + data
    return decode_command(1, header, b"").ext_fields()


def whole_frames(data: bytes) -> None:
    FrameDecoder(lambda *_: None, max_frame_bytes=16 * MIB).feed(data)


def chunks_of_a_frame(data: bytes) -> None:
    decoder = FrameDecoder(lambda *_: None, max_frame_bytes=16 * MIB)
    for at in range(0, len(data), 64):
        decoder.feed(data[at : at + 64])


def sql(data: bytes) -> object:
    return compile_sql(data.decode())({"a": "1"})


def pop_info(data: bytes) -> object:
    text = data.decode()
    response = PopMessageResponse(
        pop_time=1, invisible_time=1, revive_queue_id=1, rest_num=0, start_offset_info=text
    )
    return read_info(response)


def remark(data: bytes) -> object:
    return str(broker_error(Command(1, 1, remark=data.decode()), "127.0.0.1:1"))


def queues(size: int) -> bytes:
    table = {MessageQueue("t", "b", number): 1 for number in range(size // 43)}
    return b'{"offsetTable":' + bytes(queue_table(table)) + b"}"


def stream_offset(size: int) -> bytes:
    ids = {str(number): number for number in range(size // 14)}
    return json.dumps({"v": 1, "end": {"orders": {"broker-a": ids}}}).encode()


def frame(size: int) -> bytes:
    return (size - 4).to_bytes(4, "big") + bytes(size - 4)


INPUTS: Final[dict[str, tuple[Read, Make]]] = {
    "frames": (whole_frames, lambda size: frame(16) * (size // 16)),
    "chunks-of-a-frame": (chunks_of_a_frame, frame),
    "binary-fields": (binary_fields, lambda size: b"\x00\x02ab\x00\x00\x00\x00" * (size // 8)),
    "json-fields": (
        lambda text: decode_command(0, text, b"").ext_fields(),
        lambda size: (
            b'{"code":1,"opaque":1,"extFields":{"0":""%b}}'
            % b"".join(b',"%x":1' % n for n in range(size // 9))
        ),
    ),
    "remark": (remark, lambda size: b"java.lang.A: " * (size // 13)),
    "remark-of-one-word": (remark, lambda size: b"java." * (size // 5)),
    "remark-of-a-user": (remark, lambda size: b"AclException: User:" + b"x " * (size // 2)),
    "bare-keys": (
        refused(lambda text: read_body(text, TopicRouteData)),
        lambda size: b"{" + b",".join(b"%d:1" % n for n in range(size // 7)) + b"}",
    ),
    "object-keys": (read_reset_offsets, queues),
    "nested-keys": (refused(read_reset_offsets), lambda size: b"{" * size),
    "nested-arrays": (refused(read_reset_offsets), lambda size: b"[" * size),
    "open-string": (refused(read_reset_offsets), lambda size: b'{0:"' + b"\\" * size),
    "names-of-a-namespace": (
        lambda text: NAMESPACE.response(34, Command(0, 0, body=text)),
        lambda size: b'{"a":[' + b",".join([b'"ns%orders"'] * (size // 12)) + b"]}",
    ),
    "properties": (
        parse_properties,
        lambda size: b"".join(b"%x\x01v\x02" % number for number in range(size // 7)),
    ),
    "separators": (parse_properties, lambda size: b"\x02\x01" * (size // 2)),
    "property-without-value": (
        lambda raw: find_property(raw, b"A\x01"),
        lambda size: b"A\x01\x02" * (size // 3),
    ),
    "receipt": (refused(lambda data: parse_receipt(data.decode())), lambda size: b"1 " * size),
    "number-of-a-receipt": (
        refused(lambda data: parse_receipt(data.decode())),
        lambda size: b"9" * size + b" 1 1 1 0 b 1 1",
    ),
    "pop-info": (
        pop_info,
        lambda size: b";".join(b"0 %d 100" % number for number in range(size // 11)),
    ),
    "messages": (
        lambda block: decode_messages(block, QUEUE),
        lambda size: Stored(body=b"", properties=b"").to_bytes() * (size // 97),
    ),
    "inner-batch": (
        lambda block: decode_messages(block, QUEUE),
        lambda size: Stored(body=batch_entry(b"") * (size // 22), sys_flag=INNER).to_bytes(),
    ),
    "batch": (lambda data: list(decode_batch(data)), lambda size: batch_entry(b"x") * (size // 23)),
    "sql-conditions": (sql, lambda size: b" OR ".join([b"a = 222222222222222222"] * (size // 26))),
    "sql-texts": (sql, lambda size: b"a = '" + b"''" * (size // 2) + b"'"),
    "sql-open-text": (refused(sql), lambda size: b"a = '" + b"''" * (size // 2)),
    "sql-number": (refused(sql), lambda size: b"a = " + b"9" * size),
    "sql-list": (sql, lambda size: b"a IN (" + b",".join([b"'x'"] * (size // 4)) + b")"),
    "sql-comments": (sql, lambda size: b"a = 1 " + b"/* */" * (size // 5)),
    "stream-offset": (lambda text: StreamOffset.from_json(json.loads(text)), stream_offset),
}


@pytest.mark.parametrize(("read", "make"), INPUTS.values(), ids=INPUTS.keys())
def test_time_is_linear_and_memory_bounded(read: Read, make: Make) -> None:
    small, large = make(SMALL), make(SMALL * TIMES)
    assert TIMES * 0.9 < len(large) / len(small) < TIMES * 1.2

    few = max(FLOOR_SECONDS, cpu_seconds(lambda: read(small)))
    many = cpu_seconds(lambda: read(large))

    assert many < GAP * TIMES * few
    assert peak_bytes(lambda: read(small)) < 128 * len(small)


def random_body(size: int) -> bytes:
    return random.Random(size).randbytes(size)


BODIES: Final[dict[str, tuple[int, Callable[[bytes], bytes]]]] = {
    "plain": (0, bytes),
    "zlib": (0x301, lambda body: zlib.compress(body, 1)),
    "lz4": (0x101, lz4.frame.compress),
    "zstd": (0x201, zstandard.ZstdCompressor(level=1).compress),
}


@pytest.mark.parametrize(("sys_flag", "write"), BODIES.values(), ids=BODIES.keys())
@pytest.mark.parametrize("size", [4 * MIB, MAX_RECORD])
def test_a_record_of_any_size_is_read_in_a_few_copies(
    sys_flag: int, write: Callable[[bytes], bytes], size: int
) -> None:
    body = random_body(size)
    block = Stored(body=write(body), sys_flag=sys_flag).to_bytes()

    def read() -> None:
        messages, fault = decode_messages(block, QUEUE)
        assert fault is None
        assert messages[0].body == body

    assert peak_bytes(read) < 4 * size


@pytest.mark.parametrize("length", [2**24, 2**31 - 1, 2**32 - 1, -1])
@pytest.mark.parametrize("name", ["size", "body_length"])
def test_no_memory_is_allocated_for_a_declared_length(name: str, length: int) -> None:
    length = length if length < 2**31 else length - 2**32
    block = Stored(**{name: length}).to_bytes()  # type: ignore[arg-type]

    def read() -> None:
        messages, fault = decode_messages(block, QUEUE)
        assert messages == []
        assert fault is not None

    assert peak_bytes(read) < 64 * 1024


@pytest.mark.parametrize(
    "header",
    [
        bytes(13) + b"\x7f\xff\xff\xff",
        bytes(17) + b"\x7f\xff\xff\xff",
        bytes(17) + b"\x00\x00\x00\x08" + b"\x00\x01a\x7f\xff\xff\xff\x00",
        bytes(17) + b"\x00\x00\x00\x04" + b"\xff\xffab",
    ],
    ids=["remark", "fields", "value", "name"],
)
def test_no_memory_is_allocated_for_a_declared_length_of_a_header(header: bytes) -> None:
    assert peak_bytes(lambda: refused(lambda h: decode_command(1, h, b""))(header)) < 64 * 1024


def test_no_memory_is_allocated_for_a_declared_length_of_a_frame() -> None:
    def read() -> None:
        decoder = FrameDecoder(lambda *_: None, max_frame_bytes=16 * MIB)
        decoder.feed((16 * MIB - 4).to_bytes(4, "big") + bytes(60))
        assert decoder.has_unfinished

    assert peak_bytes(read) < 64 * 1024


def test_no_memory_is_allocated_for_numbers_in_json() -> None:
    text = msgspec.json.encode({"queueDatas": [], "brokerDatas": []}).replace(b"[]", b"[" + WORD)

    refuse = refused(lambda data: read_body(data, TopicRouteData))
    assert peak_bytes(lambda: refuse(text)) < 256 * 1024


def test_a_compressed_batch_of_empty_messages_is_bounded() -> None:
    bomb = zlib.compress(batch_entry(b"") * 1_000_000)
    block = Stored(body=bomb, sys_flag=INNER | 1).to_bytes()

    assert cpu_seconds(lambda: decode_messages(block, QUEUE)) < 2


def test_each_of_many_bombs_counts_against_one_limit() -> None:
    bomb = Stored(body=zlib.compress(bytes(8 * MIB)), sys_flag=1).to_bytes()

    def read() -> None:
        messages, fault = decode_messages(bomb * 20, QUEUE, limit=16 * MIB)
        assert fault is not None
        assert len(messages) <= 3

    assert peak_bytes(read) < 64 * MIB
