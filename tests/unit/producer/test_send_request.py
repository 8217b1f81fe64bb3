"""Send request: limits, properties, compression."""

from __future__ import annotations

import os

import pytest

from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.errors import InvalidMessageError
from rocketmq_aio.instance.routes import read_route
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.properties import MAX_PROPERTIES, parse_properties
from rocketmq_aio.producer.send_request import (
    MAX_TIMED_PROPERTIES,
    PROPERTIES_SPARE,
    SendRequest,
    check_sizes,
    make_request,
)
from rocketmq_aio.producer.topic_publish_info import TopicPublishInfo
from rocketmq_aio.protocol.codes import BINARY_HEADER
from rocketmq_aio.protocol.command import decode_command
from rocketmq_aio.protocol.compression import inflate
from rocketmq_aio.protocol.header import to_ext_fields
from tests.unit.instance.route_data import A, broker, queues, route

PUBLISH = TopicPublishInfo(
    read_route("orders", route(queues(), broker(master=A))), "shop", ProducerConfig()
)
ID = "0" * 32


def made(message: Message, **settings: object) -> SendRequest:
    config = ProducerConfig(**settings)  # type: ignore[arg-type]  # checked at run time
    return make_request(message, PUBLISH.next_target(), ID, 0, config)


def test_id_and_properties_are_encoded() -> None:
    message = Message("orders", b"x", tags="new", keys=["a", "b"], properties={"color": "red"})

    assert parse_properties(made(message).properties) == {
        "KEYS": "a b",
        "TAGS": "new",
        "WAIT": "true",
        "color": "red",
        "UNIQ_KEY": ID,
    }


def test_extra_properties_are_appended() -> None:
    message = Message("orders", b"x", tags="new")
    ready = make_request(message, PUBLISH.next_target(), ID, 0, ProducerConfig(), "TTL\x013000\x02")

    assert parse_properties(ready.properties) == {
        "TAGS": "new",
        "WAIT": "true",
        "UNIQ_KEY": ID,
        "TTL": "3000",
    }


@pytest.mark.parametrize("kind", ["message", "batch", "reply"])
def test_a_prepared_frame_equals_the_typed_header(kind: str) -> None:
    sent = made(Message("orders", b"x", tags="new", flag=7))
    sent.batch, sent.is_reply, sent.born_ms = kind == "batch", kind == "reply", 1_763_668_800_123
    head, body = sent.frame(5)
    header = sent.header(PUBLISH)
    command = decode_command(BINARY_HEADER, head[8:], body)

    assert (command.code, command.opaque, command.body) == (sent.code, 5, b"x")
    assert sent.code == header.code
    assert command.ext_fields() == to_ext_fields(header)


def test_small_bodies_are_not_compressed() -> None:
    ready = made(Message("orders", b"x" * 4095))

    assert (ready.body, ready.sys_flag) == (b"x" * 4095, 0)


@pytest.mark.parametrize(("kind", "bits"), [("zlib", 0x300), ("lz4", 0x100), ("zstd", 0x200)])
def test_large_bodies_are_compressed_and_flagged(kind: str, bits: int) -> None:
    body = b"orders and payments " * 500
    ready = made(Message("orders", body), compression=kind)
    ready.compress()

    assert ready.sys_flag == 1 | bits
    assert len(ready.body) < len(body)
    assert inflate(ready.body, ready.sys_flag) == body


def test_very_large_bodies_are_left_to_the_pool() -> None:
    small, large = (made(Message("orders", bytes(size))) for size in (8_191, 8_192))

    assert (small.compression, large.compression) == (None, ("zlib", 5))
    assert len(small.body) < len(large.body) == 8_192


def test_compression_can_be_disabled() -> None:
    body = bytes(100_000)

    assert made(Message("orders", body), compression=None).body == body


def test_a_body_that_does_not_shrink_is_sent_uncompressed() -> None:
    body = os.urandom(4 * 1024 * 1024)
    ready = made(Message("orders", body))
    ready.compress()

    assert ready.body is body
    assert ready.sys_flag == 0


def test_the_message_is_not_changed() -> None:
    message = Message("orders", bytes(100_000))
    before = (message.body, dict(message.properties), message.encoded_properties)
    made(message)

    assert (message.body, message.properties, message.encoded_properties) == before


def test_max_message_bytes_is_inclusive() -> None:
    made(Message("orders", bytes(1000)), max_message_bytes=1000)
    with pytest.raises(InvalidMessageError, match="1001 bytes") as caught:
        made(Message("orders", bytes(1001)), max_message_bytes=1000)

    assert caught.value.topic == "orders"


def test_properties_too_long_for_the_record_are_rejected() -> None:
    room = MAX_PROPERTIES - PROPERTIES_SPARE - len(made(Message("orders", b"x")).properties)
    name = "p"
    fits = "v" * (room - len(name) - 2)
    made(Message("orders", b"x", properties={name: fits}))

    with pytest.raises(InvalidMessageError, match="properties"):
        made(Message("orders", b"x", properties={name: fits + "v"}))


def test_timed_messages_leave_room_for_the_properties_of_their_delivery() -> None:
    room = MAX_TIMED_PROPERTIES - len(made(Message("orders", b"x", delay_seconds=1)).properties)
    fits = "v" * (room - len("p") - 2)
    made(Message("orders", b"x", properties={"p": fits}, delay_seconds=1))
    made(Message("orders", b"x", properties={"p": fits + "v"}, delay_level=1))

    with pytest.raises(InvalidMessageError, match=f"at most {MAX_TIMED_PROPERTIES} fit"):
        made(Message("orders", b"x", properties={"p": fits + "v"}, delay_seconds=1))


def test_sizes_are_checked_in_bytes() -> None:
    with pytest.raises(InvalidMessageError):
        made(Message("orders", b"x", properties={"p": "訂" * 12_000}))


@pytest.mark.parametrize(
    "message",
    [Message("orders", bytes(1001)), Message("orders", b"x", properties={"p": "v" * 40_000})],
)
def test_check_sizes_rejects_what_make_request_rejects(message: Message) -> None:
    with pytest.raises(InvalidMessageError):
        check_sizes(message, ProducerConfig(max_message_bytes=1000))
