"""Batched sends on a real broker."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from rocketmq_aio.config.producer import AutoBatch, ProducerConfig
from rocketmq_aio.errors import BackpressureError, BrokerError
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.values import MessageQueue, SendResult
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.testing import Cluster
from tests.broker.reading import wait_for_messages

BATCHED = ProducerConfig(auto_batch=AutoBatch(linger_seconds=0.005))
MIB = 1024 * 1024


def numbered(topic: str, number: int) -> Message:
    return Message(topic, b"%d" % number, tags="new", keys=str(number), properties={"n": "röt"})


async def test_thousands_of_batched_sends_are_stored_at_their_results(
    rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str
) -> None:
    async with Producer(
        rocketmq_group, namesrv=rocketmq_cluster.namesrv, config=BATCHED
    ) as producer:
        results = await asyncio.gather(
            *(producer.send(numbered(rocketmq_topic, n), timeout_seconds=60) for n in range(3000))
        )
    stored = {
        (each.queue_id, each.offset): each
        for each in wait_for_messages(rocketmq_cluster, rocketmq_topic, 3000)
    }

    assert len(stored) == 3000
    for number, result in enumerate(results):
        found = stored[result.queue.queue_id, result.queue_offset]
        assert found.body == b"%d" % number
        assert found.message_id == result.message_id
        assert found.properties.items() >= {"TAGS": "new", "KEYS": str(number), "n": "röt"}.items()
        assert int(result.offset_message_id[-16:], 16) == found.log_offset


async def test_batches_to_one_queue_keep_the_order_of_the_calls(
    rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str
) -> None:
    queue = MessageQueue(rocketmq_topic, rocketmq_cluster.brokers[0].name, 1)
    config = ProducerConfig(auto_batch=AutoBatch(linger_seconds=0.002, max_messages=16))
    async with Producer(
        rocketmq_group, namesrv=rocketmq_cluster.namesrv, config=config
    ) as producer:
        await producer.publish_queues(rocketmq_topic)
        sends = (
            producer.send(numbered(rocketmq_topic, n), queue=queue, timeout_seconds=60)
            for n in range(1000)
        )
        results = await asyncio.gather(*sends)
    stored = wait_for_messages(rocketmq_cluster, rocketmq_topic, 1000)

    ordered = sorted(results, key=lambda each: each.queue_offset)
    assert [each.queue_offset for each in ordered] == list(range(1000))
    assert {each.queue_id for each in stored} == {1}
    bodies = [each.body for each in sorted(stored, key=lambda each: each.offset)]
    assert bodies == [b"%d" % number for number in range(1000)]


async def test_cancelled_sends_do_not_affect_others(
    rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str
) -> None:
    choose = random.Random(7)
    async with Producer(
        rocketmq_group, namesrv=rocketmq_cluster.namesrv, config=BATCHED
    ) as producer:
        sends = [
            asyncio.create_task(producer.send(numbered(rocketmq_topic, n), timeout_seconds=60))
            for n in range(500)
        ]
        await asyncio.sleep(0)
        for number in choose.sample(range(500), 100):
            sends[number].cancel()
        await asyncio.wait(sends)
        assert producer._in_flight.count == 0
    ok = {number for number, send in enumerate(sends) if not send.cancelled()}
    stored = wait_for_messages(rocketmq_cluster, rocketmq_topic, len(ok))
    copies = Counter(int(each.body) for each in stored)

    assert len(ok) == 400
    assert all(copies[number] == 1 for number in ok)


async def test_flush_and_close_send_pending_batches(
    rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str
) -> None:
    config = ProducerConfig(auto_batch=AutoBatch(linger_seconds=30), send_timeout_seconds=60)
    async with Producer(
        rocketmq_group, namesrv=rocketmq_cluster.namesrv, config=config
    ) as producer:
        flushed = [producer.send_nowait(numbered(rocketmq_topic, n)) for n in range(10)]
        await producer.flush()
        assert all(each.done() for each in flushed)
        closed = [producer.send_nowait(numbered(rocketmq_topic, n)) for n in range(10, 20)]
    results = [each.result() for each in [*flushed, *closed]]
    stored = wait_for_messages(rocketmq_cluster, rocketmq_topic, 20)

    assert all(isinstance(each, SendResult) and each.ok for each in results)
    assert {each.message_id for each in stored} == {each.message_id for each in results}


async def test_a_batch_too_large_for_the_broker_is_split(
    rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str
) -> None:
    batch = AutoBatch(linger_seconds=0.01, max_bytes=8 * MIB)
    config = ProducerConfig(auto_batch=batch, compression=None, max_message_bytes=8 * MIB)
    async with Producer(
        rocketmq_group, namesrv=rocketmq_cluster.namesrv, config=config
    ) as producer:
        sizes = [MIB, 2 * MIB, MIB, 5 * MIB - 4096]  # the broker takes 4 MiB
        sends = [
            asyncio.create_task(
                producer.send(Message(rocketmq_topic, bytes(size)), timeout_seconds=60)
            )
            for size in sizes[:3]
        ]
        too_large = producer.send(Message(rocketmq_topic, bytes(sizes[3])), timeout_seconds=60)
        with pytest.raises(BrokerError):
            await too_large
        results = await asyncio.gather(*sends)
    stored = wait_for_messages(rocketmq_cluster, rocketmq_topic, 3)

    assert all(each.ok for each in results)
    assert sorted(len(each.body) for each in stored) == [MIB, MIB, 2 * MIB]


async def test_send_nowait_raises_backpressure_error(
    rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str
) -> None:
    config = ProducerConfig(max_in_flight=64)
    accepted = []
    refused = 0
    async with Producer(
        rocketmq_group, namesrv=rocketmq_cluster.namesrv, config=config
    ) as producer:
        for number in range(1000):
            try:
                accepted.append(producer.send_nowait(numbered(rocketmq_topic, number)))
            except BackpressureError:
                refused += 1
                await asyncio.wait(accepted, return_when=asyncio.FIRST_COMPLETED)
                await producer.flush()
        results = await asyncio.gather(*accepted)
    stored = wait_for_messages(rocketmq_cluster, rocketmq_topic, len(accepted))

    assert refused > 0
    assert {each.message_id for each in stored} == {each.message_id for each in results}
