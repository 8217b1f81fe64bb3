"""Request-reply over a real broker, with a push consumer that replies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rocketmq_aio import (
    ClientConfig,
    Message,
    MessageExt,
    Producer,
    PushConfig,
    PushConsumer,
    ReplyTimeoutError,
    SendError,
)
from rocketmq_aio.config.client import NamespaceVersion
from rocketmq_aio.testing import Cluster

AT_ONCE = 64
SLOW_SECONDS = 0.5


@asynccontextmanager
async def answering(
    client: ClientConfig, group: str, topic: str, seconds: float = 0.0
) -> AsyncIterator[Producer]:
    """Reply to every request of *topic* with its body in capitals after *seconds*."""
    config = PushConfig(start_from="earliest", concurrency=AT_ONCE)
    async with Producer(f"{group}-answers", client=client) as producer:

        async def answer(message: MessageExt) -> None:
            await asyncio.sleep(seconds)
            await producer.reply(message, message.body.upper(), timeout_seconds=10)

        consumer = PushConsumer(group, on_message=answer, client=client, config=config)
        async with consumer:
            await consumer.subscribe(topic)
            await consumer.ready()
            yield producer


@pytest.mark.parametrize("seconds", [0.0, SLOW_SECONDS])
async def test_every_request_gets_its_own_reply(
    seconds: float, rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str
) -> None:
    loop = asyncio.get_running_loop()
    client = ClientConfig(namesrv=rocketmq_cluster.namesrv)
    async with (
        answering(client, rocketmq_group, rocketmq_topic, seconds),
        Producer(f"{rocketmq_group}-asks", namesrv=rocketmq_cluster.namesrv) as producer,
    ):
        begun = loop.time()
        replies = await asyncio.gather(
            *(producer.request(Message(rocketmq_topic, b"r%d" % n), 30) for n in range(200))
        )

        assert [each.body for each in replies] == [b"R%d" % n for n in range(200)]
        assert loop.time() - begun >= seconds
        assert producer.dropped_replies == 0
        assert len(producer.client.replies) == 0


async def test_a_large_reply_arrives_unchanged(
    rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str
) -> None:
    body = b"large " * 50_000
    client = ClientConfig(namesrv=rocketmq_cluster.namesrv)
    async with (
        answering(client, rocketmq_group, rocketmq_topic),
        Producer(f"{rocketmq_group}-asks", namesrv=rocketmq_cluster.namesrv) as producer,
    ):
        reply = await producer.request(Message(rocketmq_topic, body), 30)

        assert reply.body == body.upper()
        assert reply.property("PUSH_REPLY_TIME")


async def namespaced(cluster: Cluster, namespace: str, topic: str, group: str) -> None:
    """Create *topic* and *group* in *namespace*."""
    await asyncio.to_thread(cluster.create_topic, f"{namespace}%{topic}", queues=1)
    await asyncio.to_thread(cluster.create_group, f"{namespace}%{group}")


@pytest.mark.parametrize("version", [1, 2])
async def test_requests_and_replies_within_a_namespace(
    version: NamespaceVersion, rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str
) -> None:
    await namespaced(rocketmq_cluster, "shop", rocketmq_topic, rocketmq_group)
    client = ClientConfig(
        namesrv=rocketmq_cluster.namesrv, namespace="shop", namespace_version=version
    )
    async with (
        answering(client, rocketmq_group, rocketmq_topic),
        Producer(f"{rocketmq_group}-asks", client=client) as producer,
    ):
        replies = await asyncio.gather(
            *(producer.request(Message(rocketmq_topic, b"r%d" % n), 30) for n in range(20))
        )

        assert [each.body for each in replies] == [b"R%d" % n for n in range(20)]
        assert {each.topic for each in replies} == {"DefaultCluster_REPLY_TOPIC"}
        if version == 1:
            assert {each.property("INSTANCE_ID") for each in replies} == {"shop"}


async def test_a_late_reply_is_dropped_and_one_to_a_closed_client_fails(
    rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str
) -> None:
    requests: asyncio.Queue[MessageExt] = asyncio.Queue()
    namesrv = rocketmq_cluster.namesrv
    config = PushConfig(start_from="earliest")
    consumer = PushConsumer(rocketmq_group, on_message=requests.put, namesrv=namesrv, config=config)
    async with consumer, Producer(f"{rocketmq_group}-answers", namesrv=namesrv) as answers:
        await consumer.subscribe(rocketmq_topic)
        async with Producer(f"{rocketmq_group}-asks", namesrv=namesrv) as producer:
            with pytest.raises(ReplyTimeoutError):
                await producer.request(Message(rocketmq_topic, b"x"), 1)
            request = await asyncio.wait_for(requests.get(), 30)
            assert (await answers.reply(request, b"late", timeout_seconds=10)).ok
            assert producer.dropped_replies == 1
        with pytest.raises(SendError, match="not found"):
            await answers.reply(request, b"later", timeout_seconds=5)
