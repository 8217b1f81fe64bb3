"""Broker assignment on real brokers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rocketmq_aio import (
    AllocateAveragely,
    ClientConfig,
    LitePullConsumer,
    MessageQueue,
    MQClientInstance,
    NotSupportedError,
)
from rocketmq_aio.consumer.rebalance.broker_assignment import BrokerAssignment
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.requests.groups import MessageRequestMode
from rocketmq_aio.testing import Cluster, probe

PULL, POP = MessageRequestMode.PULL, MessageRequestMode.POP


@asynccontextmanager
async def member(
    cluster: Cluster, topic: str, group: str
) -> AsyncIterator[tuple[MQClientInstance, BrokerAssignment]]:
    """A group member with a stable client-side assignment."""
    async with (
        MQClientInstance(ClientConfig(namesrv=cluster.namesrv)) as client,
        LitePullConsumer(group, client=client) as consumer,
    ):
        await consumer.subscribe(topic)
        await consumer.ready()
        yield client, BrokerAssignment(client, group)


async def test_broker_and_members_allocate_alike(
    rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str
) -> None:
    given = rocketmq_cluster, rocketmq_topic, rocketmq_group
    async with member(*given) as (one, first), member(*given) as (two, second):
        if rocketmq_cluster.version.startswith("4."):
            with pytest.raises(NotSupportedError):
                await first.of(rocketmq_topic, AllocateAveragely())
            return
        said = {
            client.client_id: await assignment.of(rocketmq_topic, AllocateAveragely())
            for client, assignment in ((one, first), (two, second))
        }
        queues = (await one.routes.get(rocketmq_topic)).subscribe_queues

    half = len(queues) // 2
    expected = [dict.fromkeys(queues[:half], PULL), dict.fromkeys(queues[half:], PULL)]
    assert [said[client_id] for client_id in sorted(said)] == expected


async def test_broker_can_assign_a_group_to_pop(
    rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str
) -> None:
    broker = rocketmq_cluster.brokers[0]
    mode = {"topic": rocketmq_topic, "consumerGroup": rocketmq_group, "mode": "POP"}
    body = json.dumps({**mode, "popShareQueueNum": 0}).encode()
    reply = await asyncio.to_thread(
        probe.request, broker.address, RequestCode.SET_MESSAGE_REQUEST_MODE, None, body
    )
    async with member(rocketmq_cluster, rocketmq_topic, rocketmq_group) as (_, assignment):
        if rocketmq_cluster.version.startswith("4."):
            assert reply.code == 3
            return
        said = await assignment.of(rocketmq_topic, AllocateAveragely())

    assert reply.code == 0
    assert said == {MessageQueue(rocketmq_topic, broker.name, -1): POP}
