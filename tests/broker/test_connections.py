"""Damaged connections to real brokers, and brokers that change their address."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.consumer import LitePullConfig
from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.consumer.lite_pull.consumer import LitePullConsumer
from rocketmq_aio.model.message import Message
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.testing import Broker, Cluster, probe
from tests.broker.reading_groups import bodies, polled, send
from tests.fakes.frame_rules import with_length
from tests.fakes.proxy import FaultProxy
from tests.unit.remoting.until import succeeds, until_done

UPDATE_BROKER_CONFIG = 25
SEND_MESSAGE_V2 = 310
RECOVERY_SECONDS = 15.0  # request timeouts and some seconds for a busy machine

MOVED_HOST = "127.0.0.2"


async def test_a_wrong_length_prefix_is_recovered_from_within_seconds(
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


@pytest.mark.needs_real_broker("it moves a broker to another address of the machine")
async def test_consumers_use_the_new_address_of_a_broker_after_a_lost_connection(
    fresh_cluster: Callable[..., Cluster], rocketmq_group: str
) -> None:
    cluster = fresh_cluster()
    broker, topic = cluster.brokers[0], f"moves-{rocketmq_group[-12:]}"
    cluster.create_topic(topic, queues=2)
    async with FaultProxy(broker.address) as proxy:
        client = ClientConfig(
            namesrv=cluster.namesrv,
            address_mapper=proxy.map_address,
            route_refresh_interval_seconds=3600.0,
        )
        config = LitePullConfig(start_from="earliest", auto_commit=False)
        async with LitePullConsumer(rocketmq_group, client=client, config=config) as consumer:
            await consumer.subscribe(topic)
            await send(cluster.namesrv, topic, ["before"])
            assert bodies(await polled(consumer, 1)) == ["before"]
            await asyncio.to_thread(move, broker, MOVED_HOST)
            proxy.refuse()
            proxy.cut()
            await send(cluster.namesrv, topic, ["after"])

            assert bodies(await polled(consumer, 1)) == ["after"]
            await consumer.commit()


def move(broker: Broker, host: str) -> None:
    """Make *broker* register with *host*; it listens on all interfaces."""
    body = (
        f"brokerIP1={host}\nbrokerPermission=6".encode()
    )  # a permission change registers immediately
    probe.ask(broker.address, UPDATE_BROKER_CONFIG, {}, body)
