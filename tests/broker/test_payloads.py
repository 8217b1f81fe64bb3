"""Codecs on a real broker: decoded values equal the encoded ones."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from rocketmq_aio.config.consumer import LitePullConfig
from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.consumer.lite_pull.consumer import LitePullConsumer
from rocketmq_aio.errors import PayloadError
from rocketmq_aio.model.codec import Codec, JSONCodec, MsgpackCodec, RawCodec
from rocketmq_aio.model.message import Message
from rocketmq_aio.producer.producer import Producer


@dataclass
class Order:
    id: int
    articles: list[str]
    at: datetime


ORDER = Order(42, ["hat", "外套"], datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC))
LARGE = Order(43, ["x" * 100] * 100, ORDER.at)  # long enough to be compressed


@pytest.mark.parametrize(
    ("codec", "values"),
    [
        (JSONCodec(Order), [ORDER, LARGE]),
        (MsgpackCodec(Order), [ORDER, LARGE]),
        (MsgpackCodec(), [{"at": ORDER.at, 7: b"\x00\xff"}, [None, True]]),
        (RawCodec(), [b"\x00\xff"]),
    ],
    ids=repr,
)
async def test_values_are_decoded_as_they_were_encoded(
    namesrv: str, topic: str, group: str, codec: Codec, values: list[object]
) -> None:
    async with Producer("shop", namesrv=namesrv, config=ProducerConfig(codec=codec)) as producer:
        queue = (await producer.publish_queues(topic))[0]
        for value in values:
            await producer.send_value(topic, value, queue=queue, tags="new")
    config = LitePullConfig(codec=codec, start_from="earliest")
    async with LitePullConsumer(group, namesrv=namesrv, config=config) as consumer:
        await consumer.subscribe(topic, "new")
        received = [(await anext(consumer)).value for _ in values]

    assert received == values


async def test_an_undecodable_body_is_still_delivered(namesrv: str, topic: str, group: str) -> None:
    async with Producer("shop", namesrv=namesrv) as producer:
        await producer.send(Message(topic, b"not json"))
    config = LitePullConfig(codec=JSONCodec(Order), start_from="earliest")
    async with LitePullConsumer(group, namesrv=namesrv, config=config) as consumer:
        await consumer.subscribe(topic)
        message = await anext(consumer)

    with pytest.raises(PayloadError):
        _ = message.value
    assert message.body == b"not json"
