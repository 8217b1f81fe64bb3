"""The compiled constructor of `Message` and results of batches agree with Python."""

from __future__ import annotations

import sys
from collections import UserDict
from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum
from types import ModuleType
from typing import Any, Final

import pytest
from hypothesis import given, settings, strategies as st

from rocketmq_aio.core import core
from rocketmq_aio.errors import InvalidMessageError
from rocketmq_aio.model import message as messages
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.properties import RESERVED
from rocketmq_aio.model.values import MessageQueue, SendResult, SendStatus
from rocketmq_aio.producer.batching.explicit_batch import MAX_OFFSET, results_of
from tests.unit.cores import typed, using

QUEUE: Final = MessageQueue("orders", "broker-a", 3)


class Name(StrEnum):
    ORDERS = "orders"
    TAG = "TagA"


class Text(str):
    __slots__ = ()


@pytest.fixture(autouse=True, scope="module")
def agreeing(built_core: ModuleType) -> Iterator[None]:
    checked = messages._checked_topics
    built_core.accelerate_messages(Message, checked, RESERVED)
    Message("orders", b"x")  # a topic that was checked
    with using(built_core):
        yield
    if core is not None:
        core.accelerate_messages(Message, checked, RESERVED)


def outcome(make: Any, *arguments: Any, **named: Any) -> object:  # noqa: ANN401 - also invalid
    try:
        message = make(*arguments, **named)
    except InvalidMessageError as error:
        return type(error), str(error), error.topic, error.reason
    except TypeError as error:
        return type(error), str(error)
    fields = [typed(getattr(message, name)) for name in Message.__slots__]
    texts = [(typed(name), typed(value)) for name, value in message.properties.items()]
    return type(message), fields, texts


def assert_made_alike(*arguments: object, **named: object) -> None:
    python = outcome(type.__call__, Message, *arguments, **named)
    assert outcome(Message, *arguments, **named) == python


ALPHABET: Final = "ab |\x00\x01\x02\x03\x1c\x1f\t~\x7f\x80ü"
Texts: Final = st.one_of(
    st.text(ALPHABET, max_size=4),
    st.text(ALPHABET[:2], min_size=1, max_size=4),
    st.sampled_from(["TagA", "ü", "\ud800", "\xa0", "\u3000", Name.TAG, Text("a"), "x" * 32_768]),
)
Odd: Final[st.SearchStrategy[Any]] = st.sampled_from(
    [None, "", b"x", 1, True, 0.5, [], ["a", "b"], ["a b"], {}, ()]
)
Names: Final = Texts | st.sampled_from([*sorted(RESERVED), "traceId", "größe"])
Properties: Final = st.dictionaries(Names, Texts, max_size=3)


@settings(max_examples=600)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "tags": Texts | Odd,
            "keys": Texts | st.lists(Texts, max_size=3) | Odd,
            "properties": Properties | Properties.map(UserDict) | st.dictionaries(Names, Odd) | Odd,
            "flag": st.sampled_from([0, 1, -1, 2**31, True, None, "1"]),
            "sharding_key": Texts | Odd,
            "priority": st.sampled_from([None, 0, 7, -1, True, "1"]),
            "wait_store_ok": st.booleans() | Odd,
            "delay_level": st.integers(-1, 19),
            "delay_seconds": st.sampled_from([None, 0, 1, -1, 0.5, "1"]),
            "deliver_at": st.sampled_from([None, datetime(2030, 1, 1, tzinfo=UTC)]),
            "unknown": st.none(),
        },
    )
)
def test_arguments_of_every_kind_are_taken_alike(named: dict[str, Any]) -> None:
    assert_made_alike("orders", b"body", **named)


@settings(max_examples=600)
@given(Texts | Odd, st.none() | Texts, st.dictionaries(st.sampled_from(["a", "b", "c"]), Texts))
def test_usual_arguments_are_taken_alike(
    keys: object, tags: str | None, properties: dict[str, str]
) -> None:
    assert_made_alike("orders", b"body", tags=tags, keys=keys, properties=properties)


@pytest.mark.parametrize(
    "topic", ["orders", "new-topic", "", "a b", "TBW102", Name.ORDERS, Text("orders"), None, 1, []]
)
@pytest.mark.parametrize(
    "body", [b"x", b"", bytearray(b"x"), bytearray(), memoryview(b"x"), "x", None, 1]
)
def test_topics_and_bodies_of_every_type_are_taken_alike(topic: object, body: object) -> None:
    assert_made_alike(topic, body, tags="TagA")
    assert_made_alike(topic, body=body)
    assert_made_alike(topic=topic, body=body)


@pytest.mark.parametrize("arguments", [(), ("orders",), ("orders", b"x", "TagA")])
def test_wrong_numbers_of_arguments_are_refused_alike(arguments: tuple[object, ...]) -> None:
    assert_made_alike(*arguments)
    assert_made_alike(*arguments, tags="TagA")
    assert_made_alike(*arguments, topic="orders")


def test_names_of_arguments_need_not_be_interned() -> None:
    assert_made_alike("orders", b"x", **{"".join(["ta", "gs"]): "TagA"})


def test_properties_are_copied_in_their_order() -> None:
    properties = {"b": "1", "a": "2"}
    message = Message("orders", b"x", properties=properties, tags="t", keys="k")
    properties["c"] = "3"

    assert list(message.properties) == ["b", "a", "KEYS", "TAGS", "WAIT"]
    assert (
        message.encoded_properties
        == "b\x011\x02a\x012\x02KEYS\x01k\x02TAGS\x01t\x02WAIT\x01true\x02"
    )


def test_subclasses_are_made_by_their_own_constructor() -> None:
    class Order(Message):
        __slots__ = ("number",)

        def __init__(self, number: int) -> None:
            super().__init__("orders", b"x", tags="TagA")
            self.number = number

    order = Order(7)
    assert (type(order), order.number, order.tags) == (Order, 7, "TagA")


def test_messages_hold_their_arguments_as_long_as_they_live() -> None:
    topic, body, tags = "".join(["topic-", "42"]), b"body" * 100, "".join(["Tag", "B"])
    properties = {"".join(["na", "me"]): "".join(["val", "ue"])}
    Message(topic, body)
    held = [sys.getrefcount(each) for each in (body, tags, *properties, *properties.values())]
    for _ in range(100):
        assert Message(topic, body, tags=tags, properties=properties).body is body
        with pytest.raises(InvalidMessageError):
            Message(topic, body, tags=tags, keys=" ", properties=properties)
    after = [sys.getrefcount(each) for each in (body, tags, *properties, *properties.values())]
    assert after == held


@pytest.mark.parametrize(
    "arguments",
    [(), (Message, set(), ()), (None, set(), set()), (Message, None, set()), (int, set(), set())],
)
def test_only_a_class_with_these_slots_is_accelerated(
    built_core: ModuleType, arguments: tuple[object, ...]
) -> None:
    with pytest.raises((TypeError, AttributeError)):
        built_core.accelerate_messages(*arguments)
    assert_made_alike("orders", b"x", tags="TagA")  # by Python now
    built_core.accelerate_messages(Message, messages._checked_topics, RESERVED)


# --- results of batches ---------------------------------------------------------------------------


@given(
    st.lists(st.text("AB", max_size=4), max_size=5),
    st.lists(st.text("AB", max_size=3), min_size=1, max_size=6),
    st.sampled_from([0, 1, -1, 2**30 - 2, 2**32 - 2, MAX_OFFSET - 1, MAX_OFFSET, 2**63, 2**80]),
)
def test_results_of_a_batch_are_made_alike(ids: list[str], stored: list[str], at: int) -> None:
    whole = SendResult(
        SendStatus.SEND_OK, "", ",".join(stored), QUEUE, at, "transaction", "region", None, False
    )
    made = results_of(whole, ids)
    with using(None):
        python = results_of(whole, ids)
    assert made == python
    assert [typed(each.queue_offset) for each in made] == [
        typed(each.queue_offset) for each in python
    ]


@pytest.mark.parametrize(
    ("ids", "stored", "at"),
    [((), [""], 0), ([], (), 0), ([], [], 0), ([], [""], "0"), (["a"], [""], 2**63 - 1)],
)
def test_wrong_arguments_of_results_are_errors(
    built_core: ModuleType, ids: object, stored: object, at: object
) -> None:
    with pytest.raises((TypeError, OverflowError)):
        built_core.batch_results(SendResult, ids, stored, at, None, QUEUE, None, "", True)
    with pytest.raises(TypeError):
        built_core.batch_results()


def test_an_error_of_the_result_class_is_raised(built_core: ModuleType) -> None:
    def make(*fields: object) -> object:
        raise MemoryError

    with pytest.raises(MemoryError):
        built_core.batch_results(make, ["a", "b"], [""], 0, None, QUEUE, None, "", True)
