"""The compiled core and Python agree: the same values, the same errors and positions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any, Final

import pytest
from hypothesis import given, settings, strategies as st

from rocketmq_aio.config.producer import MAX_BATCH_MESSAGES, ProducerConfig
from rocketmq_aio.errors import InvalidMessageError
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.producer.batching.explicit_batch import batches
from rocketmq_aio.protocol.message_id import MessageIdGenerator
from rocketmq_aio.protocol.record import decode_messages
from tests.fuzz.corpus import RECORDS
from tests.unit.cores import decoded, typed, using
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
    arguments: tuple[object, ...] = ([], b"x" * 200, at, 0, b"orders", "orders", QUEUE)
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


# --- batches --------------------------------------------------------------------------------------

Texts: Final = st.text(
    st.characters(exclude_characters="\x01\x02|", codec="utf-8"), min_size=1, max_size=8
).filter(str.strip)
Bodies: Final = st.binary(min_size=1, max_size=40)
Usual: Final = st.builds(
    Message,
    st.just("orders"),
    Bodies,
    tags=st.none() | Texts,
    keys=st.none() | st.just("order-1"),
    properties=st.dictionaries(st.sampled_from(["a", "größe"]), Texts),
    flag=st.integers(-(2**31), 2**31 - 1),
    sharding_key=st.none() | st.just("shard"),
)
Other: Final = st.one_of(
    st.builds(Message, st.sampled_from(["orders", "other", "%RETRY%group"]), Bodies),
    st.builds(Message, st.just("orders"), Bodies, wait_store_ok=st.booleans()),
    st.builds(Message, st.just("orders"), Bodies, delay_level=st.integers(0, 3)),
    st.builds(Message, st.just("orders"), Bodies, delay_seconds=st.integers(0, 3)),
    st.builds(Message, st.just("orders"), Bodies, priority=st.none() | st.integers(0, 3)),
    st.builds(type("Special", (Message,), {"__slots__": ()}), st.just("orders"), Bodies),
    st.sampled_from([None, "text", b"body", 1]),
)
CHANGES: Final = [
    ("body", bytearray(b"x")),
    ("body", b""),
    ("body", None),
    ("flag", 2**31 - 1),
    ("flag", -(2**31)),
    ("flag", True),
    ("timed", True),
    ("properties", {"WAIT": "true", "DELAY": "1"}),
    ("properties", {"WAIT": "true", "INNER_MULTI_DISPATCH": "%LMQ%a"}),
    ("properties", {"WAIT": "true", "__LITE_TOPIC": "a"}),
    ("properties", {"WAIT": "other"}),
    ("encoded_properties", "a\x01b\x02"),
    ("encoded_properties", ""),
    ("encoded_properties", "x" * 32_000),
    ("encoded_properties", "ü" * 16_350),
    ("topic", "".join(["ord", "ers"])),
]
MOST_USED: Final = 2**16 - 8  # ids; the next 65,536 have another random part


def made_of(messages: Any, settings_of: dict[str, int], used: int) -> tuple[Any, ...]:  # noqa: ANN401 - also invalid
    """Return the batches of *messages*, or why there are none, and the next id."""
    ids = MessageIdGenerator(b"\x7f\0\0\1", 1, 2)
    ids.skip(used)
    try:
        made = batches(messages, ids, 0, ProducerConfig(**settings_of))  # type: ignore[arg-type]
    except InvalidMessageError as error:
        return type(error), str(error), error.topic, error.reason
    except (TypeError, AttributeError) as error:  # of messages that were changed
        return type(error), str(error)
    parts = [
        (*map(typed, (each.topic, each.wait, each.positions, each.size)), each.ids) for each in made
    ]
    return parts, [b"".join(each.parts) for each in made], ids.next_id(0)


def assert_packed_alike(
    messages: object, settings_of: dict[str, int] | None = None, used: int = 0
) -> None:
    compiled = made_of(messages, settings_of or {}, used)
    with using(None):
        assert compiled == made_of(messages, settings_of or {}, used)


@settings(max_examples=600)
@given(st.lists(Usual, max_size=6), st.integers(0, MOST_USED), st.sampled_from([1024, 2**22]))
def test_usual_messages_are_packed_alike(
    messages: list[Message], used: int, max_bytes: int
) -> None:
    assert_packed_alike(messages, {"max_message_bytes": max_bytes}, used)


@settings(max_examples=600)
@given(st.lists(Usual | Other, max_size=5))
def test_unusual_messages_are_packed_alike(messages: list[object]) -> None:
    assert_packed_alike(messages)
    assert_packed_alike(tuple(messages))


@pytest.mark.parametrize(("name", "value"), CHANGES)
@pytest.mark.parametrize("position", [0, 1])
def test_changed_messages_are_packed_alike(name: str, value: object, position: int) -> None:
    messages = [Message("orders", b"x"), Message("orders", b"y")]
    setattr(messages[position], name, value)
    assert_packed_alike(messages)


@pytest.mark.parametrize("length", range(1020 - 200, 1024))
def test_sizes_at_the_limit_are_packed_alike(length: int) -> None:
    messages = [Message("orders", bytes(length)), Message("orders", b"x")]
    for number in (1, 2):
        assert_packed_alike(messages[:number], {"max_message_bytes": 1024})


@pytest.mark.parametrize("count", [0, 1, MAX_BATCH_MESSAGES, MAX_BATCH_MESSAGES + 1])
def test_any_number_of_messages_is_packed_alike(count: int) -> None:
    assert_packed_alike([Message("orders", b"x")] * count)


def test_the_core_packs_what_is_usual(built_core: ModuleType) -> None:
    messages = [Message("orders", b"x"), Message("orders", b"y")]
    packed = built_core.pack_batch(Message, messages, "ID", 0xFFFE, 1000, 1000)
    topic, wait, ids, body = packed
    assert (topic, wait, ids) == ("orders", "true", ["IDFFFF", "ID0000"])
    assert body.count(b"UNIQ_KEY") == 2
    assert built_core.pack_batch(Message, messages, "ID", 0, len(body), 1000) is not None
    assert built_core.pack_batch(Message, messages, "ID", 0, len(body) - 1, 1000) is None
    assert built_core.pack_batch(Message, messages, "I" * 61, 0, 1000, 1000) is None


def test_messages_without_their_attributes_are_left_to_python(built_core: ModuleType) -> None:
    empty = Message.__new__(Message)
    assert built_core.pack_batch(Message, [empty], "ID", 0, 1000, 1000) is None
    empty.timed, empty.properties = False, {"WAIT": "true"}
    assert built_core.pack_batch(Message, [empty], "ID", 0, 1000, 1000) is None
    empty.topic, empty.body = "orders", b"x"
    assert built_core.pack_batch(Message, [empty], "ID", 0, 1000, 1000) is None
    empty.encoded_properties = "\ud800"
    assert built_core.pack_batch(Message, [empty], "ID", 0, 1000, 1000) is None
    empty.encoded_properties, empty.flag = "", 2**40
    assert built_core.pack_batch(Message, [empty], "ID", 0, 1000, 1000) is None
    empty.flag = 1
    assert built_core.pack_batch(Message, [empty], "ID", 0, 1000, 1000) is not None
    for limit in (-1, 0, -(2**63)):
        assert built_core.pack_batch(Message, [empty], "ID", 0, limit, 1000) is None
        assert built_core.pack_batch(Message, [empty], "ID", 0, 1000, limit) is None


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        (Message, (), "ID", 0, 1000, 1000),
        (None, [], "ID", 0, 1000, 1000),
        (Message, [], b"ID", 0, 1000, 1000),
        (Message, [], "ID", "0", 1000, 1000),
        (Message, [], "ID", 0, 2**64, 1000),
        (Message, [], "\ud800", 0, 1000, 1000),
    ],
)
def test_wrong_arguments_of_batches_are_errors(
    built_core: ModuleType, arguments: tuple[object, ...]
) -> None:
    with pytest.raises((TypeError, OverflowError, UnicodeError)):
        built_core.pack_batch(*arguments)
