"""Delayed messages and recall on a real broker, 5.0 or newer."""

from __future__ import annotations

import asyncio
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from rocketmq_aio import LitePullConfig, LitePullConsumer
from rocketmq_aio.errors import BrokerError, NotSupportedError, PermissionDeniedError
from rocketmq_aio.model.message import Message, MessageExt
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.producer.send_request import MAX_TIMED_PROPERTIES, PLACEHOLDER_ID, encode_with_id
from rocketmq_aio.testing import Cluster, probe

UPDATE_BROKER_CONFIG = 25


def is_5(cluster: Cluster) -> bool:
    return cluster.version.startswith("5.")


def allow_recalls(cluster: Cluster, allowed: bool) -> None:
    body = f"recallMessageEnable={str(allowed).lower()}".encode()
    for broker in cluster.brokers:
        probe.ask(broker.address, UPDATE_BROKER_CONFIG, {}, body)


@pytest.fixture
def recalls(rocketmq_cluster: Cluster) -> Iterator[None]:
    """Enable recall during the block."""
    allow_recalls(rocketmq_cluster, True)
    yield
    allow_recalls(rocketmq_cluster, False)


async def consumed(cluster: Cluster, group: str, topic: str, count: int) -> list[MessageExt]:
    """Return *count* messages of *topic*."""
    config = LitePullConfig(start_from="earliest")
    found: list[MessageExt] = []
    async with LitePullConsumer(group, namesrv=cluster.namesrv, config=config) as consumer:
        await consumer.subscribe(topic)
        async with asyncio.timeout(60):
            while len(found) < count:
                found += await consumer.poll(timeout_seconds=5)
    return found


async def test_delayed_messages_are_delivered_at_their_time(
    rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str
) -> None:
    at = datetime.now(UTC) + timedelta(seconds=5)
    timed = [
        Message(rocketmq_topic, b"seconds", delay_seconds=4),
        Message(rocketmq_topic, b"at", deliver_at=at),
    ]
    async with Producer(rocketmq_group, namesrv=rocketmq_cluster.namesrv) as producer:
        begun = time.time()
        await producer.send(Message(rocketmq_topic, b"level", delay_level=2))
        await producer.send(Message(rocketmq_topic, b"now"))
        for message in timed:
            if is_5(rocketmq_cluster):
                assert (await producer.send(message)).recall_handle
            else:
                with pytest.raises(NotSupportedError, match="at once"):
                    await producer.send(message)
    count = 4 if is_5(rocketmq_cluster) else 2
    came = await consumed(rocketmq_cluster, rocketmq_group, rocketmq_topic, count)
    waited = {each.body: each.store_time.timestamp() - begun for each in came}

    assert waited[b"now"] < 4
    assert waited[b"level"] > 4.5
    if is_5(rocketmq_cluster):  # the timer counts in seconds, and may be one early
        assert waited[b"seconds"] > 2.5
        assert waited[b"at"] > 3.5
    else:
        assert waited.keys() == {b"now", b"level"}


async def test_a_delivery_time_over_the_maximum_raises_broker_error(
    rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str
) -> None:
    message = Message(rocketmq_topic, b"x", delay_seconds=30 * 24 * 3600)
    async with Producer(rocketmq_group, namesrv=rocketmq_cluster.namesrv) as producer:
        with pytest.raises(BrokerError) as caught:
            await producer.send(message)

    assert caught.value.code == (13 if is_5(rocketmq_cluster) else 3)
    assert caught.value.remark


async def test_timed_messages_with_the_longest_properties_are_delivered(
    rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str
) -> None:
    if not is_5(rocketmq_cluster):
        return  # timed messages are rejected
    properties = {"p": "v"}
    empty = Message(rocketmq_topic, b"x", properties=properties, delay_seconds=1)
    properties["p"] *= 1 + MAX_TIMED_PROPERTIES - len(encode_with_id(empty, PLACEHOLDER_ID))
    message = Message(rocketmq_topic, b"x", properties=properties, delay_seconds=1)
    async with Producer(rocketmq_group, namesrv=rocketmq_cluster.namesrv) as producer:
        await producer.send(message)
    (came,) = await consumed(rocketmq_cluster, rocketmq_group, rocketmq_topic, 1)

    assert came.property("p") == properties["p"]


@pytest.mark.usefixtures("recalls")
async def test_a_recalled_message_is_not_delivered(
    rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str
) -> None:
    async with Producer(rocketmq_group, namesrv=rocketmq_cluster.namesrv) as producer:
        if not is_5(rocketmq_cluster):
            handle = f"v1 {rocketmq_topic} {rocketmq_cluster.brokers[0].name} 1 id"
            with pytest.raises(NotSupportedError):
                await producer.recall(rocketmq_topic, urlsafe_b64encode(handle.encode()).decode())
            return
        gone = await producer.send(Message(rocketmq_topic, b"gone", delay_seconds=4))
        await producer.send(Message(rocketmq_topic, b"kept", delay_seconds=6))
        assert await producer.recall(rocketmq_topic, gone.recall_handle) == gone.message_id
        (first,) = await consumed(rocketmq_cluster, rocketmq_group, rocketmq_topic, 1)
        with pytest.raises(BrokerError) as caught:
            await producer.recall(rocketmq_topic, gone.recall_handle)

    assert first.body == b"kept"
    assert caught.value.code == 604  # its delivery time has passed


async def test_recall_needs_the_broker_setting(
    rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str
) -> None:
    allow_recalls(rocketmq_cluster, False)
    async with Producer(rocketmq_group, namesrv=rocketmq_cluster.namesrv) as producer:
        if not is_5(rocketmq_cluster):  # it has nothing to recall
            sent = await producer.send(Message(rocketmq_topic, b"x", delay_level=18))
            assert sent.recall_handle is None
            return
        sent = await producer.send(Message(rocketmq_topic, b"x", delay_seconds=3600))
        with pytest.raises(PermissionDeniedError):
            await producer.recall(rocketmq_topic, sent.recall_handle)
