"""Broker assignment: modes, unsupported brokers and topics."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rocketmq_aio import (
    AllocateAveragely,
    AllocateAveragelyByCircle,
    AllocateConsistentHash,
    ClientConfig,
    CodecError,
    ConfigError,
    MQClientInstance,
    NotSupportedError,
)
from rocketmq_aio.consumer.rebalance.broker_assignment import (
    ALL_QUEUES,
    BrokerAssignment,
    broker_strategy,
)
from rocketmq_aio.embedded.broker.clients import Group
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.requests.groups import MessageRequestMode
from tests.fakes.cluster import FakeCluster
from tests.fakes.static_topics import share_out
from tests.unit.consumer.parts import queue

PULL, POP = MessageRequestMode.PULL, MessageRequestMode.POP


@asynccontextmanager
async def assigning(
    version: str = "5.5.0", *, replicas: int = 0
) -> AsyncIterator[tuple[FakeCluster, MQClientInstance]]:
    """A topic of four queues, and a group with this client and one after it."""
    async with (
        FakeCluster(version=version, topics={"orders": 4}, replicas=replicas) as cluster,
        MQClientInstance(ClientConfig(namesrv=cluster.namesrv)) as client,
    ):
        await client.routes.get("orders")
        for broker in (cluster.broker, *cluster.broker.replicas):
            group = broker.members.groups["billing"] = Group()
            group.members = {-1: client.client_id, -2: f"{client.client_id}-2"}
        yield cluster, client


async def test_broker_assigns_queues_to_pull() -> None:
    async with assigning() as (_, client):
        blocks = await BrokerAssignment(client, "billing").of("orders", AllocateAveragely())
        dealt = await BrokerAssignment(client, "billing").of("orders", AllocateAveragelyByCircle())

    assert blocks == {queue(0): PULL, queue(1): PULL}
    assert dealt == {queue(0): PULL, queue(2): PULL}


async def test_broker_assigns_queues_to_pop() -> None:
    async with assigning() as (cluster, client):
        cluster.broker.assignments.modes["orders", "billing"] = POP

        assert await BrokerAssignment(client, "billing").of("orders", AllocateAveragely()) == {
            queue(ALL_QUEUES): POP
        }


async def test_slaves_assign_in_the_mode_of_their_master() -> None:
    """They copy it, so that members go on popping without a master."""
    async with assigning(replicas=1) as (cluster, client):
        cluster.broker.assignments.modes["orders", "billing"] = POP
        (slave,) = cluster.broker.replicas
        cluster.broker.kill()
        assignment = BrokerAssignment(client, "billing")

        assert await assignment.of("orders", AllocateAveragely(), slave.address) == {
            queue(ALL_QUEUES): POP
        }


async def test_unknown_group_changes_nothing() -> None:
    async with assigning() as (_, client):
        assert await BrokerAssignment(client, "unknown").of("orders", AllocateAveragely()) is None


async def test_client_outside_the_group_reads_nothing() -> None:
    async with assigning() as (cluster, client):
        cluster.broker.members.groups["billing"].members = {-2: "somebody"}

        assert await BrokerAssignment(client, "billing").of("orders", AllocateAveragely()) == {}


async def test_unknown_request_mode_is_an_error() -> None:
    body = (
        b'{"messageQueueAssignments":[{"messageQueue":'
        b'{"topic":"orders","brokerName":"broker-a","queueId":0},"mode":"PUSH"}]}'
    )
    async with assigning() as (cluster, client):
        cluster.faults.handle(RequestCode.QUERY_ASSIGNMENT, Response(body=body))

        with pytest.raises(CodecError, match="'PUSH' is no way"):
            await BrokerAssignment(client, "billing").of("orders", AllocateAveragely())


@pytest.mark.parametrize(("topic", "queue_id"), [("payments", 0), ("orders", ALL_QUEUES)])
async def test_queues_that_cannot_be_pulled_for_the_topic_are_an_error(
    topic: str, queue_id: int
) -> None:
    body = (
        b'{"messageQueueAssignments":[{"messageQueue":'
        b'{"topic":"%b","brokerName":"broker-a","queueId":%d},"mode":"PULL"}]}'
    ) % (topic.encode(), queue_id)
    async with assigning() as (cluster, client):
        cluster.faults.handle(RequestCode.QUERY_ASSIGNMENT, Response(body=body))

        with pytest.raises(CodecError, match="no queue of orders for PULL"):
            await BrokerAssignment(client, "billing").of("orders", AllocateAveragely())


async def test_brokers_before_5_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async with assigning("4.9.7") as (cluster, client):
        assignment = BrokerAssignment(client, "billing")
        with caplog.at_level("WARNING", "rocketmq_aio"):
            for _ in range(2):
                with pytest.raises(NotSupportedError):
                    await assignment.of("orders", AllocateAveragely())

        assert caplog.text.count("broker_assignment_unsupported") == 1
        assert cluster.broker.address in caplog.text


async def test_unsupported_is_logged_once_but_queried_again() -> None:
    async with assigning() as (_, client):
        assignment = BrokerAssignment(client, "billing")
        assigned = [await assignment.of("orders", AllocateAveragelyByCircle()) for _ in range(2)]

        assert assigned == [{queue(0): PULL, queue(2): PULL}] * 2


async def test_static_topics_are_not_queried() -> None:
    async with assigning() as (cluster, client):
        share_out(cluster, "orders", ["broker-a"] * 4)
        await client.routes.fetch("orders")
        with pytest.raises(NotSupportedError, match="static topics"):
            await BrokerAssignment(client, "billing").of("orders", AllocateAveragely())

        requests = [each.command.code for each in cluster.broker.requests]
        assert RequestCode.QUERY_ASSIGNMENT not in requests


def test_brokers_know_two_strategies() -> None:
    known = [broker_strategy(each) for each in (AllocateAveragely(), AllocateAveragelyByCircle())]

    assert known == ["AVG", "AVG_BY_CIRCLE"]
    with pytest.raises(ConfigError, match="AVG or AVG_BY_CIRCLE only"):
        broker_strategy(AllocateConsistentHash())
