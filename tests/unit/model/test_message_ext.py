"""Received messages: accessors decode the record, and invalid values are errors."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, strategies as st

from rocketmq_aio.errors import CodecError
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.record import decode_messages
from tests.unit.costs import peak_bytes
from tests.unit.stored import BORN_IPV6, STORE_IPV6, Stored

pytestmark = pytest.mark.usefixtures("each_core")

QUEUE = MessageQueue("orders", "broker-a", 3)
RECORD = Stored()


def received(record: Stored) -> MessageExt:
    (message,), fault = decode_messages(record.to_bytes(), QUEUE)
    assert fault is None
    return message


def test_the_fixed_fields_are_decoded() -> None:
    message = received(
        replace(RECORD, flag=-5, queue_offset=9, commit_log_offset=2**40, reconsume_times=3)
    )

    assert (message.flag, message.queue_offset, message.commit_log_offset) == (-5, 9, 2**40)
    assert (message.reconsume_times, message.prepared_transaction_offset) == (3, 0)
    assert (message.sys_flag, message.store_size) == (0, len(RECORD.to_bytes()))
    assert message.body_crc == 0x3610A686  # of b"hello"


def test_times_are_aware_and_exact_to_the_millisecond() -> None:
    message = received(RECORD)

    assert message.born_time == datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)
    assert message.store_time == datetime(2023, 11, 14, 22, 13, 20, 456_000, tzinfo=UTC)


@given(st.integers(-62_135_596_800_000, 253_402_300_799_999))
def test_every_representable_time_is_decoded(millis: int) -> None:
    message = received(replace(RECORD, born_ms=millis, store_ms=millis))
    expected = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=millis)

    assert message.born_time == message.store_time == expected


@pytest.mark.parametrize("millis", [-(2**63), -62_135_596_800_001, 253_402_300_800_000, 2**63 - 1])
def test_a_time_out_of_range_is_a_codec_error(millis: int) -> None:
    message = received(replace(RECORD, born_ms=millis, store_ms=millis))

    with pytest.raises(CodecError, match=f"born timestamp at byte 40: {millis} ms"):
        _ = message.born_time
    with pytest.raises(CodecError, match=f"store timestamp at byte 56: {millis} ms"):
        _ = message.store_time


@pytest.mark.parametrize(
    ("sys_flag", "born", "store"),
    [
        (0, "127.0.0.1:50000", "127.0.0.1:10911"),
        (BORN_IPV6, "[2001:db8::1]:50000", "127.0.0.1:10911"),
        (STORE_IPV6, "127.0.0.1:50000", "[2001:db8::1]:10911"),
        (BORN_IPV6 | STORE_IPV6, "[2001:db8::1]:50000", "[2001:db8::1]:10911"),
    ],
)
def test_hosts_are_decoded_for_ipv4_and_ipv6(sys_flag: int, born: str, store: str) -> None:
    message = received(replace(RECORD, sys_flag=sys_flag, reconsume_times=7))

    assert (message.born_host, message.store_host) == (born, store)
    # What comes after the hosts is found whatever their length.
    assert message.reconsume_times == 7
    assert message.store_time.microsecond == 456_000


def test_message_id_is_the_uniq_key() -> None:
    assert received(RECORD).message_id == "ID1"


@pytest.mark.parametrize(
    ("sys_flag", "offset_id"),
    [
        (0, "7F000001" + "00002A9F" + "00000000000003E8"),
        (STORE_IPV6, "20010DB8000000000000000000000001" + "00002A9F" + "00000000000003E8"),
    ],
)
def test_message_id_defaults_to_the_offset_id(sys_flag: int, offset_id: str) -> None:
    message = received(replace(RECORD, sys_flag=sys_flag, properties=b"TAGS\x01a"))

    assert message.message_id == message.offset_message_id == offset_id


@pytest.mark.parametrize(
    ("properties", "tags", "keys"),
    [
        (b"", None, ()),
        (b"TAGS\x01a\x02KEYS\x01k1 k2\x02", "a", ("k1", "k2")),
        (b"KEYS\x01k\x02TAGS\x01a", "a", ("k",)),
        (b"TAGS\x01a\x02TAGS\x01b\x02", "b", ()),
        (b"TAGS\x01a\x02TAGS\x01\x02", "a", ()),
        (b"TAGS\x01\x02KEYS\x01  \x02", None, ()),
        (b"KEYS\x01a\tb  c\x02", None, ("a\tb", "c")),
        (b"MY_TAGS\x01x\x02", None, ()),
        (b"TAGS\x01\xff\x02", "\ufffd", ()),
        (b"\x02\x02\x01\x01garbage", None, ()),
    ],
)
def test_tags_and_keys_are_read_with_and_without_the_dict(
    properties: bytes, tags: str | None, keys: tuple[str, ...]
) -> None:
    message = received(replace(RECORD, properties=properties))

    for _ in range(2):
        assert (message.tags, message.keys) == (tags, keys)
        assert message.property("TAGS") == message.properties.get("TAGS") == tags


def test_property_returns_one_property() -> None:
    message = received(replace(RECORD, properties="colour\x01红\x02n\x015\x02".encode()))

    assert (message.property("colour"), message.property("n")) == ("红", "5")
    assert (message.property("missing"), message.property("colou")) == (None, None)


def test_properties_are_built_once() -> None:
    message = received(RECORD)

    assert message.properties is message.properties


def test_the_repr_of_a_message_hides_its_content() -> None:
    message = received(replace(RECORD, body=b"secret", properties=b"token\x01secret"))

    assert repr(message) == "<MessageExt orders/broker-a/3@7 6 bytes>"


def test_messages_compare_by_identity() -> None:
    one, other = received(RECORD), received(RECORD)

    assert one != other
    assert len({one, other}) == 2


def test_a_message_takes_little_memory_besides_its_parts() -> None:
    data = RECORD.to_bytes() * 100
    messages: list[MessageExt] = []

    def read() -> None:
        messages.extend(decode_messages(data, QUEUE)[0])

    assert peak_bytes(read) / len(data) < 4


@pytest.mark.parametrize(
    ("text", "priority"),
    [
        *(("0", 0), ("7", 7), ("2147483647", 2**31 - 1)),
        *(("", None), ("high", None), ("-1", None), ("2147483648", None), ("9" * 5000, None)),
    ],
)
def test_the_priority_is_a_number_or_none(text: str, priority: int | None) -> None:
    properties = f"_SYS_MSG_PRIORITY_\x01{text}\x02".encode()

    assert received(replace(RECORD, properties=properties)).priority == priority
