"""Messages to send: every argument is validated by the constructor."""

import pickle
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, tzinfo
from enum import Enum, StrEnum
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from rocketmq_aio.config.consumer import LitePullConfig
from rocketmq_aio.errors import ConfigError, InvalidMessageError, RocketMQError
from rocketmq_aio.model.message import Message, MessageExt
from rocketmq_aio.model.names import UNSENDABLE_TOPICS
from rocketmq_aio.model.properties import RESERVED, parse_properties
from rocketmq_aio.model.values import MessageQueue, MessageSelector, SendResult, SendStatus
from rocketmq_aio.testing import received_message
from tests.unit.model.test_names import BAD_CHARACTERS, NOT_TEXT

Texts = st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1)
Whole = Texts.filter(str.strip)
MANY_TOPICS = 12_000
INVALID_KEYS: dict[str, list[object]] = {  # by the reason
    "strings": ["", " ", "\t", [""], ["a", " "], [None], [42], 5, b"a"],
    "a key holds no space": ["a b", " a", "a ", ["a b"]],
    "U+0001, U+0002": ["a\x01b", ["a\x02"]],
    "surrogate": ["\ud800"],
}
INVALID_PROPERTIES: dict[str, list[object]] = {
    "U+0001, U+0002": [{"a\x01b": "c"}, {"a": "b\x02"}, {"a": "b\x02c\x01d"}],
    "surrogate": [{"\ud800": "a"}, {"a": "\udfff"}],
    "blank": [{"": "a"}, {"a": ""}, {" ": "a"}],
    "two strings": [{"a": 1}, {1: "a"}, {"a": None}, {"a": b""}],
    "of strings to strings": [5, "ab", ["ab"]],
    "belongs to the system": [{"TAGS": "a"}],
}
NUMBERS: dict[str, list[object]] = {
    "delay_level": [1, 18, 19, 2**31 - 1],
    "priority": [0, 1, 2**31 - 1],
    "flag": [0, 1, -1, 2**31 - 1, -(2**31)],
}
INVALID_NUMBERS: dict[str, list[object]] = {
    "delay_level": [-1, 2**31, "3", 1.0, True, [1]],
    "priority": [-1, 2**31, "3", 1.0, True],
    "flag": [2**31, -(2**31) - 1, 10**30, 1.5, "1", True],
}


class Word(StrEnum):
    PAID = "paid"


class Name(str, Enum):  # noqa: UP042 - its members format as "Name.PAID"
    PAID = "paid"
    ALICE = "%LMQ%alice"


def pairs(table: Mapping[str, Iterable[object]]) -> list[tuple[str, object]]:
    return [(name, value) for name, values in table.items() for value in values]


def refusal(make: Callable[[], Message]) -> InvalidMessageError:
    """Return why a message cannot be built."""
    with pytest.raises(InvalidMessageError) as caught:
        make()
    return caught.value


# --- what a message is --------------------------------------------------------------------------


def test_a_message_needs_a_topic_and_a_body() -> None:
    message = Message("orders", b"hello")

    assert (message.topic, message.body, message.flag) == ("orders", b"hello", 0)
    assert (message.tags, message.keys, message.delay_level) == (None, (), 0)
    assert message.priority is None
    assert message.properties == {"WAIT": "true"}


def test_a_message_has_the_given_fields() -> None:
    message = Message(
        "orders",
        b"hello",
        tags="paid",
        keys=["order-1", "user-2"],
        properties={"colour": "red"},
        flag=-7,
        delay_level=18,
        wait_store_ok=False,
    )

    assert (message.tags, message.keys, message.delay_level) == ("paid", ("order-1", "user-2"), 18)
    assert message.flag == -7
    assert message.properties == {
        "colour": "red",
        "KEYS": "order-1 user-2",
        "TAGS": "paid",
        "DELAY": "18",
        "WAIT": "false",
    }


@given(
    st.dictionaries(Whole.filter(lambda name: name not in RESERVED), Whole, max_size=5),
    st.none() | Whole.filter(lambda tag: "|" not in tag),
    st.none() | st.lists(Whole.filter(lambda key: " " not in key), max_size=3),
)
def test_encoded_properties_parse_to_the_given_ones(
    properties: dict[str, str], tag: str | None, keys: list[str] | None
) -> None:
    message = Message("orders", b"x", properties=properties, tags=tag, keys=keys)
    read = parse_properties(message.encoded_properties.encode())

    assert read == message.properties
    assert {name: read[name] for name in properties} == properties
    assert (message.tags, message.keys) == (tag, tuple(keys or ()))


@pytest.mark.parametrize("word", [Word.PAID, Name.PAID], ids=["StrEnum", "str-Enum"])
def test_enum_members_are_sent_by_value(word: str) -> None:
    message = Message(word, b"x", tags=word, keys=word, properties={word: word})
    several = Message("orders", b"x", keys=[word, word])

    assert (message.topic, message.tags, message.keys) == ("paid", "paid", ("paid",))
    assert (
        message.encoded_properties
        == "paid\x01paid\x02KEYS\x01paid\x02TAGS\x01paid\x02WAIT\x01true\x02"
    )
    assert f"{message.topic} {message.tags}" == "paid paid"
    assert several.keys == ("paid", "paid")


@pytest.mark.parametrize(
    "body", [b"abc", bytearray(b"abc"), memoryview(b"abc"), memoryview(b"a-b-c")[::2]]
)
def test_a_body_may_be_any_bytes_like_object(body: bytes | bytearray | memoryview) -> None:
    message = Message("orders", body)

    assert (type(message.body), message.body) == (bytes, b"abc")


def test_a_body_is_a_copy_of_its_source() -> None:
    source = bytearray(b"abc")
    message = Message("orders", source)
    source[0] = 0

    assert message.body == b"abc"


def test_properties_are_a_copy_of_their_source() -> None:
    source = {"a": "1"}
    message = Message("orders", b"x", properties=source, tags="t")
    source["b"] = "2"

    assert set(message.properties) == {"a", "TAGS", "WAIT"}
    assert source == {"a": "1", "b": "2"}


@pytest.mark.parametrize("body", ["text", None, 5, ["a"], object()])
def test_a_body_that_is_not_bytes_is_rejected(body: bytes) -> None:
    error = refusal(lambda: Message("orders", body))

    assert type(body).__name__ in error.reason
    assert "expected bytes" in error.reason


@pytest.mark.parametrize("given", ["false", None, 0, ""])
def test_whether_to_wait_for_the_store_is_a_bool(given: bool) -> None:
    """The text "false" would mean true, and None False."""
    error = refusal(lambda: Message("orders", b"x", wait_store_ok=given))

    assert f"wait_store_ok={given!r}: expected True or False" in error.reason


@pytest.mark.parametrize("given", [[], "", 0, False])
def test_empty_properties_are_a_mapping(given: dict[str, str]) -> None:
    error = refusal(lambda: Message("orders", b"x", properties=given))

    assert f"properties are {type(given).__name__}, expected a mapping" in error.reason


@pytest.mark.parametrize("none", [None, False, 0])
def test_no_delay_level_allows_a_delay_in_seconds(none: int) -> None:
    message = Message("orders", b"x", delay_level=none, delay_seconds=5)

    assert message.properties["TIMER_DELAY_MS"] == "5000"


@pytest.mark.parametrize("body", [b"", bytearray(), memoryview(b"")])
def test_an_empty_body_is_rejected(body: bytes | bytearray | memoryview) -> None:
    assert "empty" in refusal(lambda: Message("orders", body)).reason


def test_the_repr_of_a_message_hides_its_content() -> None:
    message = Message("orders", b"secret", properties={"token": "secret"}, tags="paid")

    assert repr(message) == "<Message 'orders' 6 bytes tags='paid'>"


# --- topics -------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", ["orders", "%RETRY%group", "%DLQ%group", "TBW102", "x" * 127])
def test_valid_topics_are_accepted(topic: str) -> None:
    assert Message(topic, b"x").topic == topic


@pytest.mark.parametrize("topic", [*BAD_CHARACTERS, *NOT_TEXT, "x" * 128])
def test_invalid_topics_are_rejected(topic: str) -> None:
    error = refusal(lambda: Message(topic, b"x"))

    assert error.topic == topic
    assert repr(topic) in str(error)


@pytest.mark.parametrize("topic", sorted(UNSENDABLE_TOPICS))
def test_reserved_topics_are_rejected(topic: str) -> None:
    for _ in range(2):
        assert "reserved by the broker" in refusal(lambda: Message(topic, b"x")).reason


def test_a_message_for_a_light_message_queue_is_sent_to_a_topic() -> None:
    """Brokers number what is sent to the queue itself separately: it would hide others there."""
    for _ in range(2):
        reason = refusal(lambda: Message("%LMQ%alice", b"x")).reason
        assert "send to a topic, with properties={'INNER_MULTI_DISPATCH': '%LMQ%alice'}" in reason
    assert "send to a topic" in refusal(lambda: Message(Name.ALICE, b"x")).reason


def test_an_invalid_topic_is_not_cached() -> None:
    Message("good", b"x")
    for _ in range(2):
        assert refusal(lambda: Message("not good", b"x")).topic == "not good"


def test_topics_beyond_the_cache_are_accepted() -> None:
    assert len({Message(f"topic-{n}", b"x").topic for n in range(MANY_TOPICS)}) == MANY_TOPICS
    assert refusal(lambda: Message("a.b", b"x")).topic == "a.b"


# --- tags, keys, properties ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "tag", ["", " ", "\t", "a|b", "a||b", "|", 5, b"a", ["a"], "a\x01b", "\x02"]
)
def test_invalid_tags_are_rejected(tag: str) -> None:
    error = refusal(lambda: Message("orders", b"x", tags=tag))

    assert "tags" in error.reason


@pytest.mark.parametrize(
    ("keys", "parts"),
    [
        *(("a", ("a",)), (["a", "b"], ("a", "b")), (iter(["a", "b"]), ("a", "b"))),
        (["a\tb", "c\u3000d"], ("a\tb", "c\u3000d")),  # only a space separates keys
        *(([], ()), ((), ()), (iter(()), ())),  # those of a received message without keys
    ],
)
def test_keys_are_one_or_several(keys: str | Iterable[str], parts: tuple[str, ...]) -> None:
    message = Message("orders", b"x", keys=keys)

    assert message.keys == parts
    assert message.properties.get("KEYS", "") == " ".join(parts)


@pytest.mark.parametrize(("reason", "keys"), pairs(INVALID_KEYS))
def test_invalid_keys_are_rejected(reason: str, keys: str) -> None:
    assert reason in refusal(lambda: Message("orders", b"x", keys=keys)).reason


@pytest.mark.parametrize(("reason", "properties"), pairs(INVALID_PROPERTIES))
def test_invalid_user_properties_are_rejected(reason: str, properties: dict[str, str]) -> None:
    assert reason in refusal(lambda: Message("orders", b"x", properties=properties)).reason


@given(st.text(st.characters(codec=None)), st.text(st.characters(codec=None)))
def test_any_property_round_trips_or_is_rejected(name: str, value: str) -> None:
    try:
        message = Message("orders", b"x", properties={name: value})
    except InvalidMessageError:
        return

    assert parse_properties(message.encoded_properties.encode()) == {name: value, "WAIT": "true"}


# --- numbers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "value"), pairs(NUMBERS))
def test_numbers_in_their_range_are_kept(name: str, value: Any) -> None:  # noqa: ANN401
    assert getattr(Message("orders", b"x", **{name: value}), name) == value


@pytest.mark.parametrize(("name", "value"), pairs(INVALID_NUMBERS))
def test_other_numbers_are_rejected(name: str, value: Any) -> None:  # noqa: ANN401
    error = refusal(lambda: Message("orders", b"x", **{name: value}))

    assert f"{name}={value!r}" in error.reason


@pytest.mark.parametrize(
    "other",
    [
        {"delay_level": 1},
        {"delay_seconds": 1},
        {"deliver_at": datetime(2030, 1, 1, tzinfo=UTC)},
        {"sharding_key": "order-1"},
    ],
)
def test_a_priority_that_brokers_would_drop_is_rejected(other: dict[str, Any]) -> None:
    assert "priority=1" in refusal(lambda: Message("orders", b"x", priority=1, **other)).reason


def test_an_invalid_message_error_is_a_value_error() -> None:
    error = refusal(lambda: Message("orders", b""))

    assert isinstance(error, ValueError)
    assert isinstance(error, RocketMQError)
    assert "'orders'" in str(error)


# --- the values beside it -----------------------------------------------------------------------


def test_queues_sort_by_topic_broker_and_number() -> None:
    queues = [
        MessageQueue("b", "a", 0),
        MessageQueue("a", "b", 0),
        MessageQueue("a", "a", 10),
        MessageQueue("a", "a", 9),
    ]

    assert sorted(queues) == queues[::-1]
    assert str(queues[0]) == "b/a/0"
    assert len({*queues, MessageQueue("b", "a", 0)}) == 4


@pytest.mark.parametrize(
    "name", ["tags", "sharding_key", "priority", "delay_seconds", "deliver_at"]
)
def test_errors_about_invalid_arguments_are_short_and_do_not_depend_on_their_texts(
    name: str,
) -> None:
    class Silent:
        def __repr__(self) -> str:
            raise ValueError("no text")

    for value in (Silent(), ["x" * 10_000]):
        with pytest.raises(InvalidMessageError, match=name) as caught:
            Message("orders", b"x", **{name: value})  # type: ignore[arg-type]
        assert len(str(caught.value)) < 500


def test_a_time_zone_without_an_offset_is_none() -> None:
    class Unknown(tzinfo):
        def utcoffset(self, _: datetime | None) -> None:
            return None

        dst = utcoffset

        def tzname(self, _: datetime | None) -> None:
            return None

    when = datetime(2026, 3, 1, tzinfo=Unknown())
    with pytest.raises(InvalidMessageError, match=r"deliver_at.*with a time zone"):
        Message("orders", b"x", deliver_at=when)
    with pytest.raises(ConfigError, match="needs a time zone"):
        LitePullConfig(start_from=when)


def test_values_are_frozen_and_can_be_pickled() -> None:
    queue = MessageQueue("orders", "broker-a", 3)
    result = SendResult(SendStatus.SEND_OK, "ID", "OFFSET-ID", queue, 5)

    for value in (queue, result, MessageSelector.by_tag("a")):
        assert pickle.loads(pickle.dumps(value)) == value
    with pytest.raises(AttributeError):
        queue.queue_id = 5  # type: ignore[misc]


def test_only_send_ok_is_ok() -> None:
    queue = MessageQueue("orders", "broker-a", 3)
    results = {status: SendResult(status, "", "", queue, 0).ok for status in SendStatus}

    assert [status for status, ok in results.items() if ok] == [SendStatus.SEND_OK]


def test_a_selector_has_expression_and_kind() -> None:
    assert msgspec.structs.astuple(MessageSelector.by_tag("a || b")) == ("a || b", "TAG")
    assert msgspec.structs.astuple(MessageSelector.by_sql("a > 5")) == ("a > 5", "SQL92")


def test_user_properties_are_those_that_another_message_may_have() -> None:
    received: MessageExt = received_message(
        Message(
            "orders",
            b"x",
            tags="new",
            keys="42",
            properties={"price": "12", "BUYER_ID": "7"},  # which brokers only store
            sharding_key="c",
        )
    )
    received.raw_properties += (
        b"__BORNHOST\x01h\x02blank\x01 \x02 \x01unnamed\x02TRACE_ON\x01true\x02"
        b"ORIGIN_GROUP\x01g\x02__transactionId__\x01id\x02TRANSACTION_CHECK_TIMES\x011\x02"
        b"TRANS_OFFSET\x011\x02E_T\x01R\x02TIMER_ROLL_LABEL\x011\x02__CRC32#\x010123456789\x02"
    )
    forwarded = Message("archive", received.body, properties=received.user_properties)

    assert received.user_properties == {"price": "12", "BUYER_ID": "7", "blank": " "}
    assert forwarded.properties == received.user_properties | {"WAIT": "true"}
