"""Consumers while a master is down and a slave has its messages."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from rocketmq_aio import (
    LitePullConfig,
    LitePullConsumer,
    MessageExt,
    MessageQueue,
    NotConnectedError,
    PullConsumer,
    PushConfig,
    PushConsumer,
)
from rocketmq_aio.consumer.offsets import start_position
from rocketmq_aio.protocol.codes import ResponseCode
from tests.fakes.cluster import FakeCluster
from tests.unit.remoting.until import until

TOPIC, GROUP = "orders", "billing"
FIRST = MessageQueue(TOPIC, "broker-a", 0)


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """A master with a slave and ten messages in each of two queues."""
    async with FakeCluster(replicas=1, topics={TOPIC: 2}) as cluster:
        cluster.name_server.keeps_lost_brokers = False
        for number in range(10):
            for queue_id in range(2):
                cluster.broker.put(TOPIC, f"{queue_id}/{number}".encode(), queue_id=queue_id)
        yield cluster


def lite_pull(cluster: FakeCluster, **settings: Any) -> LitePullConsumer:  # noqa: ANN401 - those of LitePullConfig
    config = LitePullConfig(**{"start_from": "earliest", **settings})
    return LitePullConsumer(GROUP, namesrv=cluster.namesrv, config=config)


async def polled(consumer: LitePullConsumer, count: int) -> list[str]:
    taken: list[MessageExt] = []
    async with asyncio.timeout(20):
        while len(taken) < count:
            taken += await consumer.poll(1)
    return sorted(message.body.decode() for message in taken)


def sent(first: int = 0) -> list[str]:
    return [f"{queue_id}/{number}" for queue_id in range(2) for number in range(first, 10)]


async def test_a_consumer_that_starts_without_a_master_continues_where_its_group_was(
    cluster: FakeCluster,
) -> None:
    for queue_id in range(2):
        cluster.broker.commit(GROUP, TOPIC, queue_id, 4)
    cluster.broker.kill()

    async with lite_pull(cluster, start_from="latest") as consumer:
        await consumer.subscribe(TOPIC)
        assert await polled(consumer, 12) == sent(4)


async def test_a_slave_has_time_to_copy_the_offsets_of_a_group(cluster: FakeCluster) -> None:
    for queue_id in range(2):
        cluster.broker.commit(GROUP, TOPIC, queue_id, 4)
    cluster.broker.kill()
    missing = cluster.faults.refuse("query_offset", code=ResponseCode.QUERY_NOT_FOUND, times=4)

    async with lite_pull(cluster) as consumer:
        await consumer.subscribe(TOPIC)
        assert await polled(consumer, 12) == sent(4)

    assert len(missing.requests) == 4


async def test_a_new_group_begins_at_the_earliest_message_without_a_master(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_position, "COPIED_SECONDS", 1.0)
    cluster.broker.kill()
    seen: list[str] = []

    async def note(message: MessageExt) -> None:
        seen.append(message.body.decode())

    config = PushConfig(start_from="earliest")
    async with PushConsumer(
        GROUP, on_message=note, namesrv=cluster.namesrv, config=config
    ) as consumer:
        await consumer.subscribe(TOPIC)
        await until(lambda: len(seen) >= 20, "the messages", 20)

    assert sorted(seen) == sent()


async def test_a_new_group_does_not_begin_at_the_end_that_a_slave_has(cluster: FakeCluster) -> None:
    cluster.broker.kill()

    async with lite_pull(cluster, start_from="latest") as consumer:
        with pytest.raises(NotConnectedError, match="no route names a master"):
            await consumer.subscribe(TOPIC)


async def test_offsets_are_not_queried_at_a_slave_while_a_route_names_the_master(
    cluster: FakeCluster,
) -> None:
    cluster.name_server.keeps_lost_brokers = True
    cluster.broker.kill()
    asked = cluster.faults.delay("query_offset", 0, times=None)

    async with lite_pull(cluster) as consumer:
        await consumer.subscribe(TOPIC)
        assert await consumer.poll(1) == []

    assert asked.requests == deque()


async def test_commits_made_without_a_master_reach_it_when_it_returns(cluster: FakeCluster) -> None:
    async with lite_pull(cluster, commit_interval_seconds=0.1) as consumer:
        await consumer.subscribe(TOPIC)
        await consumer.ready(20)
        cluster.broker.kill()
        assert await polled(consumer, 20) == sent()
        assert await consumer.poll(0.3) == []
        assert committed(cluster) != [10, 10]

        await cluster.broker.start()
        await until(lambda: committed(cluster) == [10, 10], "the commits", 20)


def committed(cluster: FakeCluster) -> list[int | None]:
    return [cluster.broker.committed(GROUP, TOPIC, number) for number in range(2)]


async def test_a_pull_consumer_reads_offsets_and_messages_of_a_slave(cluster: FakeCluster) -> None:
    cluster.broker.kill()

    async with PullConsumer(GROUP, namesrv=cluster.namesrv) as consumer:
        assert await consumer.min_offset(FIRST) == 0
        pulled = await consumer.pull(FIRST, 0)

    assert [each.body.decode() for each in pulled.messages] == [f"0/{n}" for n in range(10)]
