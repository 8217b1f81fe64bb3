"""Rolling upgrades, killed brokers and missing name servers, under load of several kinds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from rocketmq_aio import ClientConfig, LitePullConfig, LitePullConsumer, Message, Producer
from rocketmq_aio.testing import Cluster
from tests.broker.reading_groups import bodies, numbers, polled, send
from tests.fakes.address_server import FakeAddressServer
from tests.topologies.workload import Workload
from tests.unit.remoting.until import until

QUEUES = 4
OLD, NEW = "4.9.7", "5.5.0"
WITHOUT_NAME_SERVERS_SECONDS = 5.0


@pytest.fixture(scope="module")
def pair(rocketmq_backend: str) -> Iterator[Cluster]:
    """Two masters of 4.9.7, which a test upgrades, and three name servers of 5.5.0."""
    with Cluster.start(
        NEW, backend=rocketmq_backend, broker_versions=(OLD, OLD), namesrvs=3
    ) as cluster:
        yield cluster


@pytest_asyncio.fixture
async def topic(pair: Cluster, rocketmq_group: str) -> AsyncIterator[str]:
    name = f"rolling-{rocketmq_group[-12:]}"
    await asyncio.to_thread(pair.create_topic, name, queues=QUEUES)
    yield name
    await asyncio.to_thread(pair.delete_topic, name)


async def test_a_rolling_upgrade_needs_no_handling_of_errors(pair: Cluster, topic: str) -> None:
    async with Workload(pair.namesrv, topic) as load:
        await load.until_more()
        for broker in pair.brokers:
            await asyncio.to_thread(broker.restart, version=NEW)
            await load.until_more()
        await load.finish()

    assert load.failed == {}
    assert load.disorder("orderly") == load.disorder("lite-pull") == []


async def test_a_killed_broker_costs_no_message(pair: Cluster, topic: str) -> None:
    broker = pair.brokers[1]
    async with Workload(pair.namesrv, topic) as load:
        await load.until_more()
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.start)
        await load.until_more()
        await load.finish()

    # A half message may have been stored by the killed broker; so may a message with a key, which
    # is sent to no other queue.  The others are stored by the other broker.
    assert not load.failed.keys() & {"single", "together", "batch"}
    assert load.disorder("orderly") == load.disorder("lite-pull") == []


async def test_clients_run_on_without_name_servers_and_with_empty_ones(
    pair: Cluster, topic: str, rocketmq_group: str
) -> None:
    first, *others = pair.namesrvs
    late = f"late-{rocketmq_group[-12:]}"
    async with Workload(pair.namesrv, topic) as load:
        await load.until_more()
        await asyncio.to_thread(first.kill)
        await load.until_more()
        await send(pair.namesrv, topic, ["a new client uses the others"])
        for server in others:
            await asyncio.to_thread(server.kill)
        await asyncio.sleep(WITHOUT_NAME_SERVERS_SECONDS)
        await load.until_more()
        # They know no broker until these register again, within ten seconds.
        for server in pair.namesrvs:
            await asyncio.to_thread(server.start)
        await load.until_more()
        await asyncio.to_thread(pair.wait_ready)
        await asyncio.to_thread(pair.create_topic, late, queues=1)
        await send(pair.namesrv, late, ["late"])
        await load.finish()

    assert load.failed == {}
    assert load.disorder("orderly") == load.disorder("lite-pull") == []
    assert load.copies() == dict.fromkeys(load.read, 0)


async def test_name_servers_that_an_address_server_moves_are_followed(
    pair: Cluster, topic: str, rocketmq_group: str
) -> None:
    first, second, _ = pair.namesrvs
    async with FakeAddressServer(first.address) as page:
        client = ClientConfig(namesrv=page.url, namesrv_refresh_interval_seconds=0.5)
        config = LitePullConfig(start_from="earliest")
        async with (
            Producer("moving", client=client) as producer,
            LitePullConsumer(rocketmq_group, client=client, config=config) as consumer,
        ):
            await consumer.subscribe(topic)
            await producer.send(Message(topic, b"0"))
            page.addresses = second.address
            await asyncio.to_thread(first.kill)
            try:
                for number in numbers(3, 1):
                    await producer.send(Message(topic, number.encode()))
                await until(lambda: len(page.requests) >= 6, "both clients to fetch the list")
                # The topic of retries and a new topic need the name server that is listed now.
                await consumer.unsubscribe(topic)
                await consumer.subscribe(topic)
                taken = await polled(consumer, 4)
            finally:
                await asyncio.to_thread(first.start)
    assert sorted(bodies(taken)) == numbers(4)
