"""SendBack over lost connections: at-least-once redelivery."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.consumer.common.redelivery import SendBack
from rocketmq_aio.errors import RocketMQError
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.record import decode_messages
from tests.fakes.broker import FakeBroker
from tests.fakes.cluster import FakeCluster
from tests.fakes.frame_rules import drop
from tests.fakes.proxy import FaultProxy
from tests.unit.remoting.until import until

BACK, SEND = RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2
GROUP = "billing"
RETRIES = f"%RETRY%{GROUP}"

Fault = Callable[[FaultProxy], None]


def lose_request(proxy: FaultProxy) -> None:
    proxy.up.on(drop, code=BACK)


def lose_answer(proxy: FaultProxy) -> None:
    proxy.down.on(drop, code=BACK)


def cut_request(proxy: FaultProxy) -> None:
    proxy.up.cut(byte=20, reset=True)


def cut_answer(proxy: FaultProxy) -> None:
    proxy.down.cut(byte=10)


def stored(broker: FakeBroker) -> MessageExt:
    record = broker.put("orders", b"body").record
    return decode_messages(record, MessageQueue("orders", broker.name, 0))[0][0]


@pytest.mark.parametrize(
    ("fault", "copies"),
    [(lose_request, 1), (lose_answer, 2), (cut_request, 1), (cut_answer, 2)],
    ids=["request lost", "answer lost", "request cut", "answer cut"],
)
async def test_a_sent_back_message_is_redelivered_at_least_once(fault: Fault, copies: int) -> None:
    async with (
        FakeCluster(topics={"orders": 1}) as cluster,
        FaultProxy(cluster.broker.address) as proxy,
    ):
        broker = cluster.broker
        broker.delays.seconds = [0.0] * 18
        config = ClientConfig(
            namesrv=cluster.namesrv,
            request_timeout_seconds=1.5,
            address_mapper=lambda a: proxy.address if a == broker.address else a,
        )
        async with MQClientInstance(config) as instance:
            await instance.routes.get("orders")
            fault(proxy)
            back = SendBack(instance, GROUP, max_reconsume_times=16)
            message = stored(broker)
            tried = 0
            while not await succeeds(back, message):
                tried += 1  # a consumer pauses in between
                await until(lambda: not instance.remoting.backoff_left(broker.address))

            await until(lambda: len(broker.messages(RETRIES)) >= copies, "the copies")
            assert tried <= 1
            assert {each.body for each in broker.messages(RETRIES)} == {b"body"}


async def succeeds(back: SendBack, message: MessageExt) -> bool:
    try:
        await back.send_back(message)
    except RocketMQError:
        return False
    return True
