"""Static topics: reading logical queues that move between brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import pytest
import pytest_asyncio

from rocketmq_aio import (
    BrokerError,
    ClientConfig,
    LitePullConfig,
    LitePullConsumer,
    MessageExt,
    MessageQueue,
    MQClientInstance,
)
from rocketmq_aio.protocol.codes import RequestCode
from tests.fakes.cluster import FakeCluster
from tests.fakes.static_topics import give_up, share_out
from tests.unit.remoting.until import succeeds, until_done

HALVES: Final = ["broker-a", "broker-a", "broker-b", "broker-b"]
MOVED: Final = ["broker-a", "broker-b", "broker-b", "broker-b"]
SETTINGS: Final = LitePullConfig(start_from="earliest", auto_commit=False)


def logical(number: int) -> MessageQueue:
    return MessageQueue("orders", "__syslo__global__", number)


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(brokers=2, topics={"orders": 4}) as cluster:
        share_out(cluster, "orders", HALVES)
        yield cluster


def reading(cluster: FakeCluster) -> LitePullConsumer:
    return LitePullConsumer("billing", namesrv=cluster.namesrv, config=SETTINGS)


async def polled(consumer: LitePullConsumer, count: int) -> list[MessageExt]:
    found: list[MessageExt] = []
    while len(found) < count:
        batch = await consumer.poll(10)
        assert batch, f"only {len(found)} of {count} came"
        found += batch
    return found


async def test_logical_queues_are_read_at_their_brokers(cluster: FakeCluster) -> None:
    for number, broker in ((0, 0), (1, 0), (2, 1), (3, 1)):
        cluster.brokers[broker].put("orders", b"%d" % number, queue_id=number)
    async with reading(cluster) as consumer:
        await consumer.subscribe("orders")
        found = await polled(consumer, 4)
        await consumer.commit()

    assert {(each.queue, each.body) for each in found} == {
        (logical(number), b"%d" % number) for number in range(4)
    }
    kept = [broker.committed("billing", "orders", 3) for broker in cluster.brokers]
    assert kept == [None, 1]


async def test_pulls_and_commits_name_the_logical_broker(cluster: FakeCluster) -> None:
    cluster.brokers[0].put("orders", b"x", queue_id=0)
    async with reading(cluster) as consumer:
        await consumer.subscribe("orders")
        await polled(consumer, 1)
        await consumer.commit()

    codes = (RequestCode.LITE_PULL_MESSAGE, RequestCode.UPDATE_CONSUMER_OFFSET)
    named = {
        (each.command.code, each.command.ext_fields()["bname"])
        for each in cluster.brokers[0].requests
        if each.command.code in codes
    }
    assert named == {(code, "__syslo__global__") for code in codes}


async def test_a_moved_queue_is_read_at_its_new_broker(cluster: FakeCluster) -> None:
    old, new = cluster.brokers
    async with reading(cluster) as consumer:
        await consumer.subscribe("orders")
        await consumer.ready()
        for body in (b"ends the long poll", b"moved"):
            new.put("orders", body, queue_id=1)
        give_up(old, RequestCode.LITE_PULL_MESSAGE, 1)
        share_out(cluster, "orders", MOVED, epoch=2)
        old.put("orders", b"ends the long poll", queue_id=1)
        found = await polled(consumer, 2)

    assert [(each.body, each.queue) for each in found] == [
        (b"ends the long poll", logical(1)),
        (b"moved", logical(1)),
    ]


async def test_a_pull_held_by_the_old_broker_is_abandoned(cluster: FakeCluster) -> None:
    async with (
        MQClientInstance(ClientConfig(namesrv=cluster.namesrv)) as client,
        LitePullConsumer("billing", client=client, config=SETTINGS) as consumer,
    ):
        await consumer.subscribe("orders")
        await consumer.ready()
        share_out(cluster, "orders", MOVED, epoch=2)
        cluster.brokers[1].put("orders", b"moved", queue_id=1)
        await client.routes.refresh(["orders"])
        (found,) = await polled(consumer, 1)  # within the long poll, which takes 15 s

    assert (found.body, found.queue) == (b"moved", logical(1))


async def test_offset_queries_go_to_the_new_broker(cluster: FakeCluster) -> None:
    old, new = cluster.brokers
    new.put("orders", b"moved", queue_id=1)
    async with (
        MQClientInstance(ClientConfig(namesrv=cluster.namesrv)) as client,
        LitePullConsumer("billing", client=client, config=SETTINGS) as consumer,
    ):
        await consumer.subscribe("orders")
        await consumer.ready()
        give_up(old, RequestCode.GET_MAX_OFFSET, 1)
        share_out(cluster, "orders", ["broker-b"] * 4, epoch=2)
        with pytest.raises(BrokerError, match="501"):
            await client.broker.max_offset(logical(1))

        await until_done(lambda: succeeds(client.broker.max_offset(logical(1))))
        assert await client.broker.max_offset(logical(1)) == 1
