"""Every kind of message between this client and the Java client, in both directions.

Compressed bodies and requests have separate modules.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest

from rocketmq_aio import (
    ClientConfig,
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageExt,
    Producer,
    TransactionProducer,
    TransactionState,
)
from rocketmq_aio.testing import Cluster
from tests.broker.reading import wait_for_messages
from tests.broker.reading_groups import in_thread
from tests.broker.test_compression_interop import SECONDS, java

EXCHANGE: Final = Path(__file__).parent / "java" / "Exchange.java"
NAMESPACE: Final = "shop"
IN_ORDER: Final = [f"ordered{number}" for number in range(5)]
NAMES: Final = ["plain", "oneway", "batch0", "batch1", "batch2", "delayed", *IN_ORDER, "committed"]


def message(topic: str, name: str, delay_level: int = 0) -> Message:
    return Message(
        topic,
        name.encode(),
        tags=f"tag-{name}",
        keys=name,
        properties={"own": f"ü {name}"},
        flag=7,
        delay_level=delay_level,
    )


def reported(topic: str, name: str) -> str:
    """Return the fields of `message` that a reader prints."""
    return f"{topic} tag-{name} {name} ü {name} 7 {name}"


@pytest.fixture
def inside(rocketmq_cluster: Cluster, topic: str, group: str) -> ClientConfig:
    """Connection settings for the same topic and group of a namespace."""
    rocketmq_cluster.create_topic(f"{NAMESPACE}%{topic}", queues=1)
    rocketmq_cluster.create_group(f"{NAMESPACE}%{group}")
    return ClientConfig(namesrv=rocketmq_cluster.namesrv, namespace=NAMESPACE)


async def test_java_reads_every_kind_of_message_of_this_client(
    rocketmq_cluster: Cluster, topic: str, group: str, inside: ClientConfig, tmp_path: Path
) -> None:
    client = ClientConfig(namesrv=rocketmq_cluster.namesrv)
    async with Producer(group, client=client) as producer:
        await producer.send(message(topic, "plain"))
        await producer.send_oneway(message(topic, "oneway"))
        await producer.send_batch([message(topic, f"batch{number}") for number in range(3)])
        await producer.send(message(topic, "delayed", delay_level=1))
        for name in IN_ORDER:
            await producer.send(message(topic, name), sharding_key="key")
    async with TransactionProducer(
        f"{group}-tx", check=lambda _: TransactionState.UNKNOWN, client=client
    ) as tx_producer:
        for name in ("committed", "rolled-back"):
            async with tx_producer.transaction(message(topic, name)) as transaction:
                await (transaction.commit() if name == "committed" else transaction.rollback())
    async with Producer(group, client=inside) as producer:
        await producer.send(message(topic, "namespaced"))

    arguments = ("read", client.namesrv or "", topic, group, NAMESPACE, str(len(NAMES)))
    printed = await in_thread(
        lambda: java(rocketmq_cluster.version, tmp_path, *arguments, source=EXCHANGE)
    )
    read = [line.removeprefix("read ") for line in printed.splitlines() if line[:5] == "read "]

    assert read[-1] == reported(topic, "namespaced")
    assert sorted(read[:-1]) == sorted(reported(topic, name) for name in NAMES)
    assert [each for each in read if "ordered" in each] == [
        reported(topic, name) for name in IN_ORDER
    ]


async def test_this_client_reads_every_kind_of_message_of_java(
    rocketmq_cluster: Cluster, topic: str, group: str, inside: ClientConfig, tmp_path: Path
) -> None:
    arguments = ("send", rocketmq_cluster.namesrv, topic, group, NAMESPACE)
    await in_thread(lambda: java(rocketmq_cluster.version, tmp_path, *arguments, source=EXCHANGE))
    await in_thread(lambda: wait_for_messages(rocketmq_cluster, topic, len(NAMES)))

    client = ClientConfig(namesrv=rocketmq_cluster.namesrv, verify_checksums=True)
    read = await read_all(client, topic, group, len(NAMES))

    assert sorted(map(described, read)) == sorted(reported(topic, name) for name in NAMES)
    ordered = [each for each in read if each.body.startswith(b"ordered")]
    assert [each.body.decode() for each in ordered] == IN_ORDER
    assert len({each.queue for each in ordered}) == 1
    [namespaced] = await read_all(inside, topic, group, 1)
    assert described(namespaced) == reported(topic, "namespaced")


async def read_all(client: ClientConfig, topic: str, group: str, count: int) -> list[MessageExt]:
    read: list[MessageExt] = []
    config = LitePullConfig(start_from="earliest")
    async with LitePullConsumer(group, client=client, config=config) as consumer:
        await consumer.subscribe(topic)
        async with asyncio.timeout(SECONDS):
            while len(read) < count:
                read += await consumer.poll(1)
    return read


def described(each: MessageExt) -> str:
    parts = (each.topic, each.tags, *each.keys, each.property("own"), each.flag, each.body.decode())
    return " ".join(map(str, parts))
