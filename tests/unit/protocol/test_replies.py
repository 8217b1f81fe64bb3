"""Pushed replies: decoded as messages."""

from __future__ import annotations

import zlib

import msgspec
import pytest

from rocketmq_aio.errors import CodecError
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.codes import COMPRESSED
from rocketmq_aio.protocol.replies import reply_message
from rocketmq_aio.protocol.requests.from_broker import PushReplyMessage

PUSHED = PushReplyMessage(
    producer_group="answers",
    topic="c_REPLY_TOPIC",
    default_topic="TBW102",
    default_topic_queue_nums=4,
    queue_id=3,
    sys_flag=0,
    born_timestamp=1_700_000_000_123,
    flag=-7,
    properties="KEYS\x01k\x02TAGS\x01t\x02",
    reconsume_times=2,
    born_host="10.0.0.1:4711",
    store_host="10.0.0.2:10911",
    store_timestamp=1_700_000_000_456,
)


def test_every_field_is_kept() -> None:
    message = reply_message(PUSHED, b"pong")

    assert (message.topic, message.body) == ("c_REPLY_TOPIC", b"pong")
    assert (message.queue, message.queue_offset) == (MessageQueue("c_REPLY_TOPIC", "", 3), 0)
    assert (message.tags, message.keys, message.flag) == ("t", ("k",), -7)
    assert message.born_time.timestamp() == 1_700_000_000.123
    assert message.store_time.timestamp() == 1_700_000_000.456
    assert (message.born_host, message.store_host) == ("10.0.0.1:4711", "10.0.0.2:10911")
    assert (message.reconsume_times, message.sys_flag) == (2, 0)
    assert message.body_crc == zlib.crc32(b"pong") & 0x7FFF_FFFF


@pytest.mark.parametrize(
    ("reported", "read"),
    [
        ("[::1]:10911", "[::1]:10911"),
        ("0:0:0:0:0:0:0:1:10911", "[::1]:10911"),
        ("/10.0.0.2:10911", "10.0.0.2:10911"),
        ("", "0.0.0.0:0"),
        ("nowhere", "0.0.0.0:0"),
        ("10.0.0.2:port", "0.0.0.0:0"),
        ("10.0.0.2:99999999999", "0.0.0.0:0"),
    ],
)
def test_hosts_are_read_in_any_form(reported: str, read: str) -> None:
    pushed = msgspec.structs.replace(PUSHED, born_host=reported, store_host=reported)
    message = reply_message(pushed, b"pong")

    assert (message.born_host, message.store_host) == (read, read)
    assert message.reconsume_times == 2


def test_a_compressed_body_is_inflated() -> None:
    pushed = msgspec.structs.replace(PUSHED, sys_flag=COMPRESSED)

    assert reply_message(pushed, zlib.compress(b"pong" * 100)).body == b"pong" * 100


def test_an_invalid_compressed_body_is_a_codec_error() -> None:
    pushed = msgspec.structs.replace(PUSHED, sys_flag=COMPRESSED)

    with pytest.raises(CodecError):
        reply_message(pushed, b"no deflate")


def test_no_properties_are_none() -> None:
    message = reply_message(msgspec.structs.replace(PUSHED, properties=None), b"pong")

    assert message.properties == {}
