"""Stored messages: decoded, never past an invalid record."""

import zlib
from collections.abc import Sequence
from dataclasses import replace

import lz4.frame
import pytest
import zstandard
from hypothesis import given, strategies as st

from rocketmq_aio.errors import CodecError
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.compression import InflationLimitError
from rocketmq_aio.protocol.record import (
    MAX_INNER,
    decode_batch,
    decode_message,
    decode_messages,
    encode_batch_entry,
)
from tests.unit.costs import MIB, peak_bytes
from tests.unit.stored import (
    BORN_IPV6,
    COMPRESSED,
    INNER,
    MAGIC_V1,
    MAGIC_V2,
    STORE_IPV6,
    Stored,
    batch_entry,
)

pytestmark = pytest.mark.usefixtures("each_core")

QUEUE = MessageQueue("orders", "broker-a", 3)
PLAIN = Stored()
RETRY = MessageQueue("%RETRY%" + "g" * 200, "broker-a", 0)
LIGHT = MessageQueue("%LMQ%jobs", "broker-a", 0)
LARGE = bytes(3 * MIB)


def decode(*records: Stored | bytes, limit: int = 32 * MIB) -> list[MessageExt]:
    """Return the messages of an answer that is good."""
    messages, fault = decode_messages(block(records), QUEUE, limit=limit)
    assert fault is None
    return messages


def refusal(*records: Stored | bytes, limit: int = 32 * MIB) -> tuple[int, CodecError]:
    """Return how many messages of an answer were read, and why not more."""
    messages, fault = decode_messages(block(records), QUEUE, limit=limit)
    assert fault is not None
    return len(messages), fault


def block(records: Sequence[Stored | bytes]) -> bytes:
    return b"".join(each if isinstance(each, bytes) else each.to_bytes() for each in records)


def compressed(body: bytes, kind: str = "zlib") -> Stored:
    bits, data = {
        "zlib": (0x300, zlib.compress(body)),
        "lz4": (0x100, lz4.frame.compress(body)),
        "zstd": (0x200, zstandard.ZstdCompressor().compress(body)),
        "none-said": (0, zlib.compress(body)),
    }[kind]
    return replace(PLAIN, body=data, sys_flag=COMPRESSED | bits)


def batch_of(count: int) -> Stored:
    entries = [batch_entry(b"inner-%d" % n, b"K\x01%d" % n, flag=n) for n in range(count)]
    return replace(PLAIN, body=b"".join(entries), sys_flag=INNER)


# --- what can be read ---------------------------------------------------------------------------


def test_an_empty_response_has_no_messages() -> None:
    assert decode() == []


def test_a_message_is_read_with_its_queue_and_offset() -> None:
    (message,) = decode(replace(PLAIN, queue_offset=2**40))

    assert (message.topic, message.body, message.queue) == ("orders", b"hello", QUEUE)
    assert message.queue_offset == 2**40
    assert message.properties == {"TAGS": "paid", "UNIQ_KEY": "ID1"}


def test_messages_follow_each_other() -> None:
    messages = decode(*[replace(PLAIN, queue_offset=n, body=b"x" * n) for n in range(5)])

    assert [(m.queue_offset, len(m.body)) for m in messages] == [(n, n) for n in range(5)]


def test_a_message_may_have_no_body_and_no_properties() -> None:
    (message,) = decode(replace(PLAIN, body=b"", properties=b""))

    assert (message.body, message.properties, message.tags, message.keys) == (b"", {}, None, ())


@pytest.mark.parametrize("sys_flag", [BORN_IPV6, STORE_IPV6, BORN_IPV6 | STORE_IPV6])
def test_hosts_may_be_ipv6(sys_flag: int) -> None:
    first, second = decode(replace(PLAIN, sys_flag=sys_flag), PLAIN)

    assert (first.body, first.properties["TAGS"]) == (b"hello", "paid")
    assert second.body == b"hello"


def test_a_long_topic_comes_in_version_two() -> None:
    record = replace(PLAIN, topic=RETRY.topic.encode(), magic=MAGIC_V2)
    messages, fault = decode_messages(record.to_bytes() * 2, RETRY)

    assert fault is None
    assert [m.topic for m in messages] == [RETRY.topic, RETRY.topic]


def dispatched(offsets: str = "9,5", names: str = "%LMQ%a,%LMQ%jobs") -> Stored:
    """Return a record of the topic ``orders`` that is in light message queues, too."""
    pairs = f"INNER_MULTI_DISPATCH\x01{names}\x02INNER_MULTI_QUEUE_OFFSET\x01{offsets}\x02"
    return replace(PLAIN, properties=pairs.encode())


def test_messages_of_a_light_queue_have_its_topic_and_their_offsets_in_it() -> None:
    grown = compressed(b"a" * 5000)
    stored = [
        dispatched("0,5"),
        replace(dispatched("7", "%LMQ%jobs"), body=grown.body, sys_flag=grown.sys_flag),
        replace(PLAIN, topic=b"%LMQ%jobs", queue_offset=8),  # sent to it, or popped again
    ]
    messages, fault = decode_messages(block(stored), LIGHT)

    assert fault is None
    assert [(m.topic, m.queue, m.queue_offset) for m in messages] == [
        (LIGHT.topic, LIGHT, offset) for offset in (5, 7, 8)
    ]
    assert [m.body for m in messages] == [b"hello", b"a" * 5000, b"hello"]


@pytest.mark.parametrize(
    "record",
    [
        PLAIN,
        dispatched("9"),
        dispatched("9,-1"),
        dispatched("9,x"),
        dispatched(names="%LMQ%a,%LMQ%b"),
    ],
)
def test_a_message_without_an_offset_in_the_light_queue_stops_the_decoder(record: Stored) -> None:
    good = dispatched()
    messages, fault = decode_messages(block([good, record, good]), LIGHT)

    assert [m.queue_offset for m in messages] == [5]
    assert fault is not None
    assert fault.position == len(good.to_bytes())


def test_the_limit_of_inflated_data_holds_in_a_light_queue() -> None:
    grown = compressed(LARGE)
    large = replace(dispatched(), body=grown.body, sys_flag=grown.sys_flag)
    messages, fault = decode_messages(block([large] * 3), LIGHT, limit=4 * MIB)

    assert len(messages) == 1
    assert isinstance(fault, InflationLimitError)
    assert fault.position == len(large.to_bytes())


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd", "none-said"])
def test_a_compressed_body_is_inflated(kind: str) -> None:
    first, second = decode(compressed(b"a" * 5000, kind), PLAIN)

    assert first.body == b"a" * 5000
    assert second.body == b"hello"


def test_an_inner_batch_becomes_its_messages() -> None:
    *inner, after = decode(replace(batch_of(3), queue_offset=40, commit_log_offset=9), PLAIN)

    assert [m.body for m in inner] == [b"inner-0", b"inner-1", b"inner-2"]
    assert [m.queue_offset for m in inner] == [40, 41, 42]
    assert [m.flag for m in inner] == [0, 1, 2]
    assert [m.property("K") for m in inner] == ["0", "1", "2"]
    assert {m.commit_log_offset for m in inner} == {9}
    assert after.body == b"hello"


def test_an_inner_batch_may_be_compressed() -> None:
    body = zlib.compress(batch_entry(b"one") + batch_entry(b"two"))
    messages = decode(replace(PLAIN, body=body, sys_flag=INNER | COMPRESSED | BORN_IPV6))

    assert [(m.body, m.queue_offset) for m in messages] == [(b"one", 7), (b"two", 8)]


@given(
    st.lists(
        st.builds(
            Stored,
            body=st.binary(max_size=50),
            properties=st.binary(max_size=50),
            queue_offset=st.integers(0, 2**63 - 1),
            flag=st.integers(-(2**31), 2**31 - 1),
            sys_flag=st.sampled_from([0, BORN_IPV6, STORE_IPV6, BORN_IPV6 | STORE_IPV6]),
            magic=st.sampled_from([Stored.magic, MAGIC_V2]),
        ),
        max_size=5,
    )
)
def test_every_record_is_read_as_it_was_laid_out(records: list[Stored]) -> None:
    messages = decode(*records)

    assert [(m.body, m.raw_properties, m.queue_offset, m.flag, m.sys_flag) for m in messages] == [
        (r.body, r.properties, r.queue_offset, r.flag, r.sys_flag) for r in records
    ]
    assert [m.store_size for m in messages] == [len(r.to_bytes()) for r in records]


# --- what cannot be read ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "field", "position"),
    [
        (replace(PLAIN, magic=0), "magic", 4),
        (replace(PLAIN, magic=0xDAA320A8), "magic", 4),
        (replace(PLAIN, topic=b"other"), "topic", 94),
        (replace(PLAIN, topic=b""), "topic", 94),
        (replace(PLAIN, topic=b"other", sys_flag=BORN_IPV6), "topic", 106),
        (replace(PLAIN, size=0), "message size", 0),
        (replace(PLAIN, size=-1), "message size", 0),
        (replace(PLAIN, size=2**31 - 1), "message size", 0),
        (replace(PLAIN, size=100), "message size", 0),
        (replace(PLAIN, size=0, sys_flag=BORN_IPV6), "message size", 0),
        (replace(PLAIN, size=2**31 - 1, sys_flag=BORN_IPV6), "message size", 0),
        (replace(PLAIN, size=-1, magic=MAGIC_V2), "message size", 0),
        (replace(PLAIN, body_length=-1, magic=MAGIC_V2), "body length", 84),
        (replace(PLAIN, body_length=2**31 - 1, magic=MAGIC_V2), "body length", 84),
        (replace(PLAIN, topic_length=2**16 - 1, magic=MAGIC_V2), "topic length", 93),
        (replace(PLAIN, properties_length=5), "message size", 0),
        (replace(PLAIN, properties_length=2**16 - 1), "message size", 0),
        (replace(PLAIN, properties_length=5, magic=MAGIC_V2), "properties length", 101),
        (replace(PLAIN, body=b"no zlib", sys_flag=COMPRESSED), "body", 88),
        (replace(PLAIN, body=b"no zlib", sys_flag=COMPRESSED | STORE_IPV6), "body", 100),
        (replace(PLAIN, sys_flag=COMPRESSED | 0x700), "body", 88),
        (replace(PLAIN, sys_flag=INNER), "inner batch", 88),
        (replace(PLAIN, body=batch_entry(b"x", size=5), sys_flag=INNER), "inner batch", 88),
        (replace(batch_of(2), queue_offset=-1), "queue offset", 20),
        (replace(batch_of(2), queue_offset=2**63 - 1), "queue offset", 20),
    ],
)
def test_an_invalid_record_stops_the_decoder(record: Stored, field: str, position: int) -> None:
    good = len(PLAIN.to_bytes())
    count, fault = refusal(record, PLAIN)
    count_after, fault_after = refusal(PLAIN, PLAIN, record, PLAIN)

    assert (count, fault.field, fault.position) == (0, field, position)
    assert (count_after, fault_after.field, fault_after.position) == (2, field, 2 * good + position)


@pytest.mark.parametrize("body_length", [-1, -5, -88, -(2**31), 6, 100, 2**31 - 1])
@pytest.mark.parametrize("topic_length", [None, 0, 255])
def test_consistent_false_lengths_are_a_codec_error(
    body_length: int, topic_length: int | None
) -> None:
    record = replace(PLAIN, body_length=body_length, topic_length=topic_length)
    count, fault = refusal(record)

    assert count == 0
    assert fault.position <= len(record.to_bytes())


@pytest.mark.parametrize(
    "record",
    [PLAIN, replace(PLAIN, sys_flag=BORN_IPV6 | STORE_IPV6), compressed(b"x" * 50), batch_of(2)],
    ids=["plain", "ipv6", "compressed", "batch"],
)
def test_a_truncated_record_is_a_codec_error(record: Stored) -> None:
    data = record.to_bytes()
    for cut in range(1, len(data)):
        count, fault = refusal(PLAIN, data[:cut])

        assert count == 1
        assert fault.position >= len(PLAIN.to_bytes())


@given(st.sampled_from([0, COMPRESSED, INNER, BORN_IPV6]), st.data())
def test_a_flipped_byte_ends_in_messages_or_a_codec_error(
    sys_flag: int, data: st.DataObject
) -> None:
    good = replace(PLAIN, sys_flag=sys_flag).to_bytes()
    at = data.draw(st.integers(0, len(good) - 1))
    flipped = good[:at] + bytes([data.draw(st.integers(0, 255))]) + good[at + 1 :]
    messages, fault = decode_messages(flipped + PLAIN.to_bytes(), QUEUE)

    assert len(messages) >= 2 or isinstance(fault, CodecError)
    assert {m.topic for m in messages} <= {"orders"}


# --- what would fill memory ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
def test_one_message_inflates_to_the_limit_and_not_further(kind: str) -> None:
    assert decode(compressed(LARGE, kind), limit=len(LARGE))[0].body == LARGE

    count, fault = refusal(compressed(LARGE, kind), limit=len(LARGE) - 1)

    assert (count, fault.field, fault.position) == (0, "body", 0)
    assert isinstance(fault, InflationLimitError)


def test_a_response_inflates_to_a_bounded_total_size() -> None:
    data = block([compressed(LARGE)] * 20)
    peak = peak_bytes(lambda: decode_messages(data, QUEUE, limit=8 * MIB))
    count, fault = refusal(data, limit=8 * MIB)

    assert 1 <= count <= 2
    assert fault.field == "body"
    assert peak < (8 + 4) * MIB


def test_a_response_of_bombs_is_decoded_in_parts() -> None:
    record = compressed(LARGE).to_bytes()
    left, read = 20, 0
    while left:
        messages, _ = decode_messages(record * left, QUEUE, limit=8 * MIB)
        assert messages
        read += len(messages)
        left -= len(messages)

    assert read == 20


def test_a_plain_answer_may_be_larger_than_the_limit_of_inflated_bytes() -> None:
    large = replace(PLAIN, body=LARGE)

    assert len(decode(large, replace(large, sys_flag=BORN_IPV6), limit=MIB)) == 2


def test_an_inner_batch_of_empty_messages_is_bounded() -> None:
    full = replace(PLAIN, body=batch_entry(b"") * MAX_INNER, sys_flag=INNER)
    bomb = zlib.compress(batch_entry(b"") * (MAX_INNER + 1))

    assert len(decode(full)) == MAX_INNER
    assert refusal(replace(PLAIN, body=bomb, sys_flag=INNER | COMPRESSED))[1].field == "inner batch"


def test_many_batches_of_empty_messages_are_bounded_together() -> None:
    bomb = zlib.compress(batch_entry(b"") * MAX_INNER)
    record = replace(PLAIN, body=bomb, sys_flag=INNER | COMPRESSED)
    count, fault = refusal(*[record] * 10)

    assert count <= 3 * MAX_INNER
    assert fault.field == "body"


# --- batch bodies -------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=30), st.binary(max_size=30))
    )
)
def test_a_batch_is_read_as_it_was_written(entries: list[tuple[int, bytes, bytes]]) -> None:
    parts = [encode_batch_entry(body, properties, flag) for flag, body, properties in entries]

    assert list(decode_batch(b"".join(part for entry in parts for part in entry))) == entries


def test_a_batch_entry_is_laid_out_as_the_broker_reads_it() -> None:
    parts = encode_batch_entry(b"body", b"K\x01v\x02", 5)

    assert b"".join(parts) == batch_entry(b"body", b"K\x01v\x02", 5)


@pytest.mark.parametrize("size", [0, -1, 5, 22, 24, 2**31 - 1])
def test_a_batch_entry_with_a_false_size_is_a_codec_error(size: int) -> None:
    good = batch_entry(b"good")

    with pytest.raises(CodecError, match=f"batch entry at byte {len(good)}"):
        list(decode_batch(good + batch_entry(b"x", size=size)))


def test_a_truncated_batch_is_a_codec_error() -> None:
    data = batch_entry(b"body", b"K\x01v\x02")
    for cut in range(1, len(data)):
        with pytest.raises(CodecError, match="batch entry at byte 0"):
            list(decode_batch(data[:cut]))


@pytest.mark.parametrize("magic", [MAGIC_V1, MAGIC_V2])
def test_a_record_contains_its_topic_and_queue(magic: int) -> None:
    data = Stored(magic=magic, topic="%RETRY%größe".encode(), sys_flag=BORN_IPV6).to_bytes()

    message = decode_message(data, "broker-a")

    assert message.queue == MessageQueue("%RETRY%größe", "broker-a", 3)
    assert (message.topic, message.body, message.queue_offset) == ("%RETRY%größe", b"hello", 7)


@pytest.mark.parametrize(
    "data", [b"", bytes(91), Stored(topic=b"\xff").to_bytes(), Stored().to_bytes()[:-1]]
)
def test_a_record_alone_that_cannot_be_read_is_a_codec_error(data: bytes) -> None:
    with pytest.raises(CodecError):
        decode_message(data, "broker-a")
