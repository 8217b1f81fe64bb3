"""Static topics of the embedded broker."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final

from rocketmq_aio import (
    AdminClient,
    ClientConfig,
    Message,
    MessageQueue,
    MQClientInstance,
    Producer,
    PullConsumer,
)
from rocketmq_aio.embedded.broker.broker import EmbeddedBroker
from rocketmq_aio.embedded.cluster import EmbeddedCluster
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command
from tests.fakes.raw_client import RawClient

CREATE: Final = {
    "topic": "logical",
    "defaultTopic": "TBW102",
    "readQueueNums": "1",
    "writeQueueNums": "1",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "order": "false",
}
TOPIC: Final = "logical"
QUEUE: Final = MessageQueue(TOPIC, "__syslo__global__", 0)
ITEM: Final = {"gen": 0, "queueId": 0, "bname": "broker-a", "logicOffset": 0}


async def create(client: RawClient, items: list[dict[str, Any]]) -> Command:
    detail = {"topic": "logical", "bname": "broker-a", "totalQueues": 6, "epoch": 1}
    detail |= {"scope": "__global__", "dirty": False, "hostedQueues": {"3": items}}
    body = json.dumps(detail).encode()
    code = RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC
    return await client.answer(client.send_fields(code, CREATE, body))


async def send(client: RawClient, queue_id: int) -> Command:
    fields = {"a": "shop", "b": "logical", "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0"}
    fields |= {"g": "1", "h": "0", "i": "", "m": "false"}
    code = RequestCode.SEND_MESSAGE_V2
    return await client.answer(client.send_fields(code, fields, b"body"))


async def test_requests_name_logical_queues() -> None:
    async with EmbeddedBroker() as broker, RawClient(broker.address) as client:
        await create(client, [ITEM])
        sent = await send(client, 3)
        query = {"topic": "logical", "queueId": "3"}
        end = await client.answer(client.send_fields(RequestCode.GET_MAX_OFFSET, query))

    assert sent.ext_fields()["queueId"] == "3"
    assert end.ext_fields() == {"offset": "1"}
    assert [len(log.messages) for log in broker.topics["logical"].queues] == [1]


async def test_queues_of_other_brokers_are_redirected() -> None:
    async with EmbeddedBroker() as broker, RawClient(broker.address) as client:
        await create(client, [ITEM])
        refused = await send(client, 4)

    assert refused.code == ResponseCode.NOT_LEADER_FOR_QUEUE


@asynccontextmanager
async def static_topic() -> AsyncIterator[
    tuple[EmbeddedCluster, AdminClient, Producer, PullConsumer]
]:
    """Clients of a cluster with two brokers; the queue of its topic belongs to broker-a."""
    async with (
        EmbeddedCluster(brokers=2) as cluster,
        MQClientInstance(ClientConfig(namesrv=cluster.namesrv)) as client,
        AdminClient(client=client) as admin,
        Producer("shop", client=client) as producer,
        PullConsumer("readers", client=client) as reader,
    ):
        await admin.static_topics.create(TOPIC, 1, brokers=["broker-a"])
        yield cluster, admin, producer, reader


async def send_some(producer: Producer, count: int) -> list[int]:
    return [(await producer.send(Message(TOPIC, b"x"))).queue_offset for _ in range(count)]


async def read_all(reader: PullConsumer) -> list[int]:
    found, offset, end = [], 0, await reader.max_offset(QUEUE)
    while offset < end:
        result = await reader.pull(QUEUE, offset)
        assert result.next_offset > offset
        found += [each.queue_offset for each in result.messages]
        offset = result.next_offset
    return found


async def test_a_moved_queue_keeps_its_messages_and_continues_at_the_next_block() -> None:
    async with static_topic() as (_, admin, producer, reader):
        before = await send_some(producer, 3)
        await admin.static_topics.remap(TOPIC, brokers=["broker-b"])
        after = await send_some(producer, 2)
        again = await admin.static_topics.remap(TOPIC, brokers=["broker-a"])
        back = await send_some(producer, 2)

        assert (before, after, back) == ([0, 1, 2], [10_000, 10_001], [20_000, 20_001])
        assert [each.moves for each in again] == [2]
        assert await read_all(reader) == [*before, *after, *back]
        assert await reader.min_offset(QUEUE) == 0
        assert await reader.max_offset(QUEUE) == 20_002


async def test_an_admin_client_reads_logical_offsets() -> None:
    async with static_topic() as (_, admin, producer, _):
        before = await send_some(producer, 3)
        await admin.static_topics.remap(TOPIC, brokers=["broker-b"])
        after = await send_some(producer, 2)
        found = [each async for each in admin.messages.read(QUEUE)]
        last = await admin.messages.by_offset(QUEUE, after[1])

        assert [each.queue_offset for each in (*found, last)] == [*before, *after, after[1]]
        assert {each.queue for each in found} == {QUEUE}


async def test_commits_of_a_moved_queue_are_logical_offsets() -> None:
    async with static_topic() as (_, admin, producer, reader):
        await send_some(producer, 3)
        await reader.pull(QUEUE, 0)  # the broker creates the group
        await reader.commit(QUEUE, 2)
        await admin.static_topics.remap(TOPIC, brokers=["broker-b"])
        await reader.message_queues(TOPIC)  # requests the route
        early = await reader.committed(QUEUE)
        await send_some(producer, 2)
        await reader.pull(QUEUE, 10_000)
        await reader.commit(QUEUE, 10_001)

        assert (early, await reader.committed(QUEUE)) == (2, 10_001)


async def test_times_are_searched_as_by_real_brokers() -> None:
    async with static_topic() as (cluster, admin, producer, reader):
        await send_some(producer, 1)
        await admin.static_topics.remap(TOPIC, brokers=["broker-b"])
        cluster.clock.advance(1)
        await send_some(producer, 2)
        await reader.message_queues(TOPIC)
        moved = (await reader.pull(QUEUE, 10_000)).messages[0].store_time

        assert await reader.offset_for_time(QUEUE, moved) == 0
        assert await reader.offset_for_time(QUEUE, moved + timedelta(days=1)) == 10_002


async def test_a_deleted_topic_is_no_static_topic_when_it_exists_again() -> None:
    async with EmbeddedBroker() as broker, RawClient(broker.address) as client:
        await create(client, [ITEM])
        broker.delete_topic(TOPIC)
        broker.create_topic(TOPIC, queues=5)
        sent = await send(client, 4)

    assert sent.code == 0
    assert len(broker.messages(TOPIC, 4)) == 1


async def test_replicas_serve_logical_queues() -> None:
    query = {"topic": TOPIC, "queueId": "0"}
    async with (
        EmbeddedCluster(brokers=2, replicas=1) as cluster,
        MQClientInstance(ClientConfig(namesrv=cluster.namesrv)) as client,
        AdminClient(client=client) as admin,
        Producer("shop", client=client) as producer,
    ):
        await admin.static_topics.create(TOPIC, 1, brokers=["broker-a"])
        await send_some(producer, 3)
        await admin.static_topics.remap(TOPIC, brokers=["broker-b"])
        await send_some(producer, 2)
        async with RawClient(cluster.brokers[1].replicas[0].address) as slave:
            least, most = [
                (await slave.answer(slave.send_fields(code, query))).ext_fields()["offset"]
                for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)
            ]

    assert (least, most) == ("0", "10002")
