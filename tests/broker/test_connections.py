"""Connections to real brokers that are damaged on the way."""

from __future__ import annotations

import asyncio

from rocketmq_aio.config import ClientConfig, ProducerConfig
from rocketmq_aio.message import Message
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.testing import Cluster
from tests.fakes.frame_rules import with_length
from tests.fakes.proxy import FaultProxy
from tests.unit.remoting.until import succeeds, until_done

SEND_MESSAGE_V2 = 310
RECOVERY_SECONDS = 15.0  # requests time out, a few seconds pass, and a busy machine


async def test_a_wrong_length_prefix_costs_seconds_and_not_the_connection_for_good(
    rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str
) -> None:
    config = ProducerConfig(retries=0, send_timeout_seconds=1.0)
    async with FaultProxy(rocketmq_cluster.brokers[0].address) as proxy:
        client = ClientConfig(namesrv=rocketmq_cluster.namesrv, address_mapper=proxy.map_address)
        async with Producer(rocketmq_group, client=client, config=config) as producer:
            await producer.send(Message(rocketmq_topic, b"before"))
            proxy.down.on(with_length(0xFFFFF0), code=SEND_MESSAGE_V2)
            assert not await succeeds(producer.send(Message(rocketmq_topic, b"swallowed")))

            async def sends_again() -> bool:
                await asyncio.sleep(0.2)
                return await succeeds(producer.send(Message(rocketmq_topic, b"after")))

            await until_done(sends_again, "a send to succeed", RECOVERY_SECONDS)

    assert len(proxy.connects) == 2
