"""VIP channel (the second port of brokers) and units."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Final

import msgspec
import pytest

from rocketmq_aio import (
    ClientConfig,
    Message,
    Producer,
    ProducerConfig,
    PushConfig,
    PushConsumer,
    TransactionProducer,
    TransactionState,
)
from rocketmq_aio.model.address import vip_address
from rocketmq_aio.testing import Cluster
from tests.broker.reading import wait_for_messages
from tests.broker.reading_groups import in_thread
from tests.broker.test_requests_replies import answering
from tests.fakes.raw_client import RawClient
from tests.unit.remoting.until import until_done

UNIT_TOPICS: Final = 311  # requests to name servers: topics first sent to by a unit,
TOPICS_OF_UNIT_GROUPS: Final = 312  # and retry topics of groups that are in one
SECONDS: Final = 30.0


async def test_all_kinds_of_sends_can_use_the_vip_channel(
    rocketmq_cluster: Cluster, topic: str, group: str
) -> None:
    first = rocketmq_cluster.brokers[0].address
    second = vip_address(first)
    client = ClientConfig(namesrv=rocketmq_cluster.namesrv, vip_channel=True)
    async with Producer(group, client=client) as producer:
        await producer.send(Message(topic, b"plain"))
        await producer.send(Message(topic, b"keyed"), sharding_key="k")
        await producer.send_batch([Message(topic, b"in"), Message(topic, b"batch")])
        await producer.send_oneway(Message(topic, b"oneway"))
        assert second in producer.client._connection_numbers
        assert producer.client.remoting.is_connected(second)
    async with TransactionProducer(
        f"{group}-tx", check=lambda _: TransactionState.ROLLBACK, client=client
    ) as tx_producer:
        async with tx_producer.transaction(Message(topic, b"committed")) as transaction:
            await transaction.commit()
        # One connection to each: they are numbered over all addresses.
        assert set(tx_producer.client._connection_numbers) == {
            rocketmq_cluster.namesrv,
            first,
            second,
        }
        assert sorted(tx_producer.client._connection_numbers.values()) == [1, 2, 3]
    found = await in_thread(lambda: wait_for_messages(rocketmq_cluster, topic, 6, queues=4))

    expected = [b"batch", b"committed", b"in", b"keyed", b"oneway", b"plain"]
    assert sorted(each.body for each in found) == expected


async def test_replies_arrive_through_the_vip_channel(
    rocketmq_cluster: Cluster, topic: str, group: str
) -> None:
    client = ClientConfig(namesrv=rocketmq_cluster.namesrv, vip_channel=True)
    async with (
        answering(client, group, topic),
        Producer(f"{group}-asks", client=client) as producer,
    ):
        assert (await producer.request(Message(topic, b"tea"), 30)).body == b"TEA"


async def test_an_unreachable_vip_channel_is_named_in_the_error(
    rocketmq_cluster: Cluster, topic: str, group: str
) -> None:
    first = rocketmq_cluster.brokers[0].address

    def mapped(address: str) -> str:
        return "127.0.0.1:1" if address == vip_address(first) else address

    client = ClientConfig(namesrv=rocketmq_cluster.namesrv, vip_channel=True, address_mapper=mapped)
    config = ProducerConfig(send_timeout_seconds=1)
    async with Producer(group, client=client, config=config) as producer:
        with pytest.raises(Exception, match=vip_address(first)):
            await producer.send(Message(topic, b"x"))


async def listed(namesrv: str, code: int) -> list[str]:
    """Return the topics that a name server returns for request *code*."""
    async with RawClient(namesrv) as raw:
        answer = await raw.answer(raw.send_fields(code))
    topics: list[str] = msgspec.json.decode(answer.body)["topicList"]
    return topics


async def test_unit_topics_carry_the_unit_flag(rocketmq_cluster: Cluster, group: str) -> None:
    namesrv = rocketmq_cluster.namesrv
    new = f"{group}-of-a-unit"
    client = ClientConfig(namesrv=namesrv, unit_mode=True, unit_name="east")
    done = asyncio.Event()

    async def handle(_: object) -> None:
        done.set()

    async with AsyncExitStack() as stack:
        producer = await stack.enter_async_context(Producer(group, client=client))
        await producer.send(Message(new, b"x"))
        config = PushConfig(start_from="earliest")
        consumer = PushConsumer(group, on_message=handle, client=client, config=config)
        await stack.enter_async_context(consumer)
        await consumer.subscribe(new)
        await asyncio.wait_for(done.wait(), SECONDS)
        assert consumer.client.client_id.endswith("@east")

        async def known() -> bool:
            units = await listed(namesrv, UNIT_TOPICS)
            of_groups = await listed(namesrv, TOPICS_OF_UNIT_GROUPS)
            return new in units and f"%RETRY%{group}" in of_groups

        await until_done(known, "the name server knows", SECONDS)
