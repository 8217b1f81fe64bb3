"""Messages for unit tests of handlers equal those that a broker delivers."""

from __future__ import annotations

from typing import Any, cast

import pytest

from rocketmq_aio import ConfigError, JSONCodec, LitePullConfig, LitePullConsumer, Message, Producer
from rocketmq_aio.embedded.cluster import EmbeddedCluster
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.protocol.record import decode_message
from rocketmq_aio.testing import received_message

CODEC = JSONCodec(dict[str, int])
SENT = Message(
    "orders", b'{"number": 42}', tags="new", keys=["42", "x"], properties={"a": "b"}, flag=7
)


def facts(message: MessageExt) -> list[object]:
    names = ("topic", "body", "tags", "keys", "flag", "reconsume_times", "queue", "queue_offset")
    return [*(getattr(message, name) for name in names), message.properties["a"]]


async def test_it_equals_the_message_of_a_broker() -> None:
    config = LitePullConfig(start_from="earliest")
    async with (
        EmbeddedCluster(topics={"orders": 1}) as cluster,
        Producer("shop", namesrv=cluster.namesrv) as producer,
        LitePullConsumer("billing", namesrv=cluster.namesrv, config=config) as consumer,
    ):
        await consumer.subscribe("orders")
        await producer.send(SENT)
        [real] = await consumer.poll(timeout_seconds=10)

    assert facts(received_message(SENT)) == facts(real)


def test_the_codec_decodes_its_value() -> None:
    assert received_message(SENT, codec=CODEC).value == {"number": 42}


@pytest.mark.parametrize("message_id", [None, "ABC"])
def test_a_message_id_is_given_or_made(message_id: str | None) -> None:
    made = received_message(SENT, message_id=message_id).message_id

    assert made == (message_id or "7F000001000018B4AAC2000000000000")


def test_messages_of_one_queue_have_different_ids() -> None:
    ids = {received_message(SENT, queue_offset=each).message_id for each in (0, 1, 256, 65_536)}

    assert len(ids) == 4


def test_its_head_is_the_begin_of_a_record() -> None:
    message: MessageExt = received_message(SENT, queue_id=2, queue_offset=9, reconsume_times=3)
    topic = message.topic.encode()
    length = len(message.raw_properties).to_bytes(2, "big")
    record = message.head + message.body + bytes([len(topic)]) + topic + length

    decoded = decode_message(record + message.raw_properties, "broker-a")

    assert facts(decoded) == facts(message)
    assert (decoded.queue.queue_id, decoded.queue_offset, decoded.reconsume_times) == (2, 9, 3)


@pytest.mark.parametrize(
    ("setting", "arguments"),
    [("sent", {"sent": "x"}), ("queue_id", {"queue_id": None}), ("message_id", {"message_id": 5})],
)
def test_a_wrong_argument_is_named(setting: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"^{setting}=.*expected"):
        received_message(**{"sent": SENT, **arguments})


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *(("queue_id", 2**31), ("queue_id", -1)),
        *(("queue_offset", 2**63), ("queue_offset", -1)),
        *(("reconsume_times", 2**31), ("reconsume_times", -1)),
    ],
)
def test_a_number_that_no_stored_message_has_is_an_error(setting: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"{setting}={value}"):
        received_message(SENT, **{setting: cast(Any, value)})
