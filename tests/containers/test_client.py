"""Clients of a broker behind published ports: the advertised address must be reachable."""

from __future__ import annotations

import asyncio

from rocketmq_aio import LitePullConfig, LitePullConsumer, Message, Producer
from rocketmq_aio.testing import Broker, Cluster

MESSAGES = 20
SECONDS = 60


async def test_messages_sent_to_a_container_are_consumed(
    rocketmq_namesrv: str, rocketmq_topic: str, rocketmq_group: str
) -> None:
    bodies = {b"message %d" % number for number in range(MESSAGES)}
    await send(rocketmq_namesrv, rocketmq_topic, bodies)

    assert await receive(rocketmq_namesrv, rocketmq_topic, rocketmq_group) == bodies


async def test_messages_sent_before_a_kill_are_consumed_after_it(
    rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str
) -> None:
    bodies = {b"message %d" % number for number in range(MESSAGES)}
    await send(rocketmq_cluster.namesrv, rocketmq_topic, bodies)
    await asyncio.to_thread(kill_and_start, rocketmq_cluster.brokers[0])

    assert await receive(rocketmq_cluster.namesrv, rocketmq_topic, rocketmq_group) == bodies


def kill_and_start(broker: Broker) -> None:
    broker.kill()
    broker.start()


async def send(namesrv: str, topic: str, bodies: set[bytes]) -> None:
    async with Producer("containers-producer", namesrv=namesrv) as producer:
        for body in bodies:
            await producer.send(Message(topic, body))


async def receive(namesrv: str, topic: str, group: str) -> set[bytes]:
    """Return the bodies of the first MESSAGES messages in *topic*."""
    config = LitePullConfig(start_from="earliest")
    received: set[bytes] = set()
    async with (
        asyncio.timeout(SECONDS),
        LitePullConsumer(group, namesrv=namesrv, config=config) as consumer,
    ):
        await consumer.subscribe(topic)
        while len(received) < MESSAGES:
            received.update(message.body for message in await consumer.poll())
    return received
