"""The compiled core and Python agree: the same values, the same errors and positions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import Final

import pytest
from hypothesis import given, settings, strategies as st

from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.record import decode_messages
from tests.fuzz.corpus import RECORDS
from tests.unit.cores import decoded, using
from tests.unit.stored import BORN_IPV6, COMPRESSED, INNER, MAGIC_V2, STORE_IPV6, Stored

QUEUE: Final = MessageQueue("orders", "broker-a", 3)
LENGTHS: Final = st.none() | st.integers(-(2**31), 2**31 - 1) | st.integers(-2, 120)
SHORT_LENGTHS: Final = st.none() | st.integers(0, 255)
Records: Final = st.builds(
    Stored,
    topic=st.sampled_from([b"orders", b"orders", b"orders", b"other", b"", b"orderss"]),
    body=st.binary(max_size=60),
    properties=st.binary(max_size=60),
    queue_offset=st.integers(-(2**63), 2**63 - 1),
    sys_flag=st.sampled_from([0, 0, 0, 1 << 8, BORN_IPV6, STORE_IPV6, COMPRESSED, INNER]),
    magic=st.sampled_from([Stored.magic, Stored.magic, MAGIC_V2, 0]),
)


@pytest.fixture(autouse=True, scope="module")
def agreeing(built_core: ModuleType) -> Iterator[None]:
    with using(built_core):
        yield


def assert_agreed(data: bytes, queue: MessageQueue = QUEUE) -> None:
    compiled = decode_messages(data, queue)
    with using(None):
        assert decoded(compiled) == decoded(decode_messages(data, queue))


@settings(max_examples=600)
@given(st.lists(Records, max_size=4), st.binary(max_size=4))
def test_records_are_decoded_alike(records: list[Stored], rest: bytes) -> None:
    assert_agreed(b"".join([each.to_bytes() for each in records]) + rest)


@settings(max_examples=600)
@given(Records, LENGTHS, LENGTHS, SHORT_LENGTHS, st.none() | st.integers(0, 2**16 - 1))
def test_false_lengths_are_refused_alike(
    record: Stored,
    size: int | None,
    body_length: int | None,
    topic_length: int | None,
    properties_length: int | None,
) -> None:
    changed = replace(
        record,
        size=size,
        body_length=body_length,
        topic_length=topic_length,
        properties_length=properties_length,
    )
    assert_agreed(Stored().to_bytes() + changed.to_bytes() + Stored().to_bytes())


def test_every_truncation_is_refused_alike() -> None:
    data = Stored().to_bytes() * 2
    for cut in range(len(data)):
        assert_agreed(data[:cut])


@settings(max_examples=600)
@given(st.sampled_from(RECORDS), st.data())
def test_a_changed_byte_is_decoded_alike(record: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(record) - 1))
    value = data.draw(st.integers(0, 255))
    changed = record[:at] + bytes([value]) + record[at + 1 :]
    for topic in ("TopicTest", "orders"):
        assert_agreed(changed + record, MessageQueue(topic, "broker-a", 3))


@pytest.mark.parametrize("topic", ["", "größe", "t" * 255, "t" * 256, "t" * 300])
def test_topics_of_every_length_are_decoded_alike(topic: str) -> None:
    encoded = topic.encode()
    record = Stored(topic=encoded, topic_length=len(encoded) & 255)
    assert_agreed(record.to_bytes() * 2, MessageQueue(topic, "broker-a", 3))


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_other_buffers_than_bytes_are_decoded_alike(kind: type) -> None:
    assert_agreed(kind(Stored().to_bytes() * 2))


def test_the_core_decodes_what_is_plain(built_core: ModuleType) -> None:
    messages: list[object] = []
    data = Stored().to_bytes()
    unusual = Stored(sys_flag=BORN_IPV6).to_bytes()
    made = built_core.decode_plain(
        lambda *fields: fields, messages, data * 3 + unusual, 0, 0xF1, b"orders", "orders", QUEUE
    )
    assert made == 3 * len(data)
    assert len(messages) == 3


@pytest.mark.parametrize("at", [-1, 10**6, 2**63 - 1, -(2**63)])
def test_a_position_outside_of_the_data_is_returned(built_core: ModuleType, at: int) -> None:
    arguments = ([], b"x" * 200, at, 0, b"orders", "orders", QUEUE)
    assert built_core.decode_plain(tuple, *arguments) == at


def test_an_error_of_the_message_class_is_raised(built_core: ModuleType) -> None:
    def make(*fields: object) -> object:
        raise MemoryError

    with pytest.raises(MemoryError):
        built_core.decode_plain(make, [], Stored().to_bytes(), 0, 0, b"orders", "orders", QUEUE)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        (tuple, (), b"", 0, 0, b"", "", QUEUE),
        (tuple, [], b"", "0", 0, b"", "", QUEUE),
        (tuple, [], b"", 0, -1, b"", "", QUEUE),
        (tuple, [], b"", 0, 0, "", "", QUEUE),
    ],
)
def test_wrong_arguments_are_errors(built_core: ModuleType, arguments: tuple[object, ...]) -> None:
    with pytest.raises((TypeError, OverflowError)):
        built_core.decode_plain(*arguments)
