"""Failover of brokers that confirm messages before their replicas have them.

RocketMQ loses such messages when their master fails; clients lose no other ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

import pytest

from rocketmq_aio import LitePullConfig, LitePullConsumer, Message, MessageQueue, Producer
from rocketmq_aio.testing import Cluster
from tests.fakes.log_reader import read_queue
from tests.topologies.controlled import (
    WAIT_SECONDS,
    Load,
    create_topic,
    in_sync_broker,
    rejoin,
    start_controlled,
)
from tests.unit.remoting.until import until, until_done

QUEUES: Final = 2
# More than the sockets between master and replica hold, which deliver what was sent before a kill.
FILLING_MESSAGES: Final = 80
FILLING: Final = bytes(1024 * 1024)
# Pulls have no position that is compared with the log of a new master.
COMPARED: Final = ("concurrent", "orderly", "lite pull", "pop")


@pytest.fixture(scope="module")
def cluster(rocketmq_backend: str, rocketmq_version: str) -> Iterator[Cluster]:
    """Two replicas of a broker; the master confirms messages that only it has."""
    with start_controlled(
        rocketmq_version, rocketmq_backend, slaves=1, sync_replication=False
    ) as running:
        yield running


async def fill(cluster: Cluster, topic: str) -> None:
    async with Producer("filling", namesrv=cluster.namesrv) as producer:
        for _ in range(FILLING_MESSAGES):
            await producer.send(Message(topic, FILLING), timeout_seconds=30)


async def stored_at(address: str, broker: str, topics: list[str]) -> set[bytes]:
    """Return the bodies in the log of a broker."""
    queues = [MessageQueue(topic, broker, number) for topic in topics for number in range(QUEUES)]
    return {entry.body for queue in queues for entry in await read_queue(address, queue)}


async def test_only_messages_that_no_replica_has_are_lost(cluster: Cluster) -> None:
    broker = await asyncio.to_thread(in_sync_broker, cluster)
    topics = [create_topic(cluster, name, queues=QUEUES) for name in ("sales", "ordered")]
    filling = create_topic(cluster, "filling", queues=1)
    load = Load(cluster.namesrv, *topics)
    master = broker.find_master()
    (replica,) = (each for each in broker.replicas if each is not master)
    async with load.running():
        await load.progress()
        before = set(load.acknowledged)
        replica.pause()
        try:
            await fill(cluster, filling)
            await load.progress()  # consumers process what only the master has
            master.kill()
            begun = load.sent
        finally:
            replica.resume()
        await asyncio.to_thread(broker.wait_new_master, master)
        await load.progress()
        await asyncio.to_thread(rejoin, broker, broker.replicas.index(master))
        await load.progress()
        acknowledged = set(load.acknowledged)
        lost = acknowledged - await stored_at(replica.address, broker.name, topics)
        await until(
            lambda: not any(load.missing().get(kind, set()) - lost for kind in COMPARED),
            "every message that was not lost",
            WAIT_SECONDS,
        )

    assert lost
    assert not lost & before
    assert max(int(body.split()[-1]) for body in lost) <= begun
    assert load.failed == []
    assert load.disordered() == []
    assert {each.queue.topic for each in load.corrections()} == set(topics)


async def test_messages_at_offsets_that_a_filter_excluded_are_delivered(cluster: Cluster) -> None:
    """The consumer has passed messages that the new master lacks; others get their offsets."""
    broker = await asyncio.to_thread(in_sync_broker, cluster)
    topic = create_topic(cluster, "tagged", queues=1)
    filling = create_topic(cluster, "filling", queues=1)
    master = broker.find_master()
    (replica,) = (each for each in broker.replicas if each is not master)
    config = LitePullConfig(start_from="earliest")
    wanted = [b"wanted %d" % number for number in range(30)]
    async with (
        Producer("tagging", namesrv=cluster.namesrv) as producer,
        LitePullConsumer("tagged", namesrv=cluster.namesrv, config=config) as consumer,
    ):

        async def send(body: bytes, tag: str) -> None:
            await producer.send(Message(topic, body, tags=tag), timeout_seconds=30)

        async def passed() -> bool:
            await consumer.poll(0.1)
            return set((await consumer.lag()).values()) == {0}

        await consumer.subscribe(topic, "wanted")
        await consumer.ready(WAIT_SECONDS)
        await send(b"first", "wanted")
        await until_done(passed, "the first message", WAIT_SECONDS)
        replica.pause()
        try:
            await fill(cluster, filling)
            for _ in range(20):
                await send(b"another", "other")
            await until_done(passed, "messages that only the master has", WAIT_SECONDS)
            master.kill()
        finally:
            replica.resume()
        await asyncio.to_thread(broker.wait_new_master, master)
        for body in wanted:
            await send(body, "wanted")
        taken: list[bytes] = []
        async with asyncio.timeout(WAIT_SECONDS):
            while len(taken) < len(wanted):
                taken += [message.body for message in await consumer.poll(1)]
        await asyncio.to_thread(rejoin, broker, broker.replicas.index(master))

    assert taken == wanted
