"""Copies of dead letters: where they are sent."""

from __future__ import annotations

import pytest

from rocketmq_aio import ConfigError, Message, MessageExt
from rocketmq_aio.cli.dlq import copy_of
from rocketmq_aio.testing import received_message


def letter_of(group: str, **properties: str) -> MessageExt:
    letter: MessageExt = received_message(Message(f"%DLQ%{group}", b"1"))
    pairs = [f"{name}\x01{value}\x02" for name, value in properties.items()]
    letter.raw_properties += "".join(pairs).encode()
    return letter


@pytest.mark.parametrize(
    ("properties", "topic"),
    [
        ({"RETRY_TOPIC": "orders"}, "orders"),
        ({"RETRY_TOPIC": "orders", "DLQ_ORIGIN_TOPIC": "%RETRY%a_b"}, "orders"),
        ({"RETRY_TOPIC": "%RETRY%a_b", "DLQ_ORIGIN_TOPIC": "orders"}, "orders"),
        ({"RETRY_TOPIC": "%RETRY%a_b_new_orders"}, "new_orders"),
        ({"RETRY_TOPIC": "%RETRY%a_b+orders"}, "orders"),
        ({"RETRY_TOPIC": "%RETRY%shop%a_b_shop%orders"}, "shop%orders"),
    ],
)
def test_a_letter_goes_to_the_topic_of_the_message(properties: dict[str, str], topic: str) -> None:
    """Brokers from 5.0 keep popped messages that are redelivered in topics of their own."""
    assert copy_of(letter_of("a_b", **properties), None).topic == topic
    assert copy_of(letter_of("a_b", **properties), "chosen").topic == "chosen"


@pytest.mark.parametrize("properties", [{}, {"RETRY_TOPIC": "%RETRY%a_b"}])
def test_a_letter_without_the_topic_of_the_message_needs_a_topic(
    properties: dict[str, str],
) -> None:
    with pytest.raises(ConfigError, match="does not name its original topic"):
        copy_of(letter_of("a_b", **properties), None)


@pytest.mark.parametrize("named", ["%LMQ%chat", "%RETRY%a_b_%LMQ%chat"])
def test_a_letter_of_a_light_queue_goes_back_to_that_queue_by_a_topic(named: str) -> None:
    letter = letter_of("a_b", RETRY_TOPIC=named, INNER_MULTI_DISPATCH="%LMQ%chat,%LMQ%other")
    with pytest.raises(ConfigError, match="a topic to send messages of %LMQ%chat to"):
        copy_of(letter, None)
    copy = copy_of(letter, "chats")

    assert (copy.topic, copy.properties["INNER_MULTI_DISPATCH"]) == ("chats", "%LMQ%chat")


def test_a_copy_has_the_sharding_key_flag_and_priority_of_its_letter() -> None:
    keyed: MessageExt = received_message(Message("%DLQ%a_b", b"1", sharding_key="order-1", flag=3))
    urgent: MessageExt = received_message(Message("%DLQ%a_b", b"1", priority=7))

    assert (copy_of(keyed, "orders").sharding_key, copy_of(keyed, "orders").flag) == ("order-1", 3)
    assert copy_of(urgent, "orders").priority == 7
