"""Masters that confirm a message when a slave has it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from rocketmq_aio import Message, Producer, ProducerConfig, SendStatus
from rocketmq_aio.testing import Cluster, Slave, probe
from tests.unit.remoting.until import until_done

COUNT = 100
SECONDS = 60.0
# Masters wait for a slave for 5 s (4.9) or 3 s.
ONCE = ProducerConfig(send_timeout_seconds=30.0, retries=0)


@pytest.fixture(scope="module", params=("4.9.7", "5.5.0"))
def cluster(request: pytest.FixtureRequest, rocketmq_backend: str) -> Iterator[Cluster]:
    """A master with one slave."""
    with Cluster.start(
        request.param, backend=rocketmq_backend, slaves=1, sync_replication=True
    ) as running:
        yield running


@pytest.fixture
def slave(cluster: Cluster) -> Slave:
    return cluster.brokers[0].slaves[0]


@pytest_asyncio.fixture
async def topic(cluster: Cluster, slave: Slave, rocketmq_group: str) -> AsyncIterator[str]:
    """A topic with one queue and one message that the slave has, too."""
    name = f"sync-{rocketmq_group[-12:]}"
    await asyncio.to_thread(cluster.create_topic, name, queues=1)
    async with Producer("first", namesrv=cluster.namesrv, config=ONCE) as producer:
        await producer.send(Message(name, b"first"))
    await asyncio.to_thread(slave.wait_copied, name)
    yield name
    for node in (cluster.brokers[0], slave):
        if node.pid is None:
            await asyncio.to_thread(node.start)


async def wait_end(address: str, topic: str, end: int) -> None:
    async def reached() -> bool:
        return await asyncio.to_thread(probe.queue_ends, address, topic, 1) == [end]

    await until_done(reached, f"{end} messages", SECONDS)


async def test_a_slave_has_all_messages_that_are_confirmed_when_the_master_is_killed(
    cluster: Cluster, slave: Slave, topic: str
) -> None:
    (master,) = cluster.brokers
    async with Producer("confirmed", namesrv=cluster.namesrv, config=ONCE) as producer:
        results = [await producer.send(Message(topic, b"%d" % n)) for n in range(COUNT)]
        master.kill()

    assert {result.status for result in results} == {SendStatus.SEND_OK}
    await wait_end(slave.address, topic, 1 + COUNT)


async def test_a_send_tells_that_the_slave_does_not_have_the_message(
    cluster: Cluster, slave: Slave, topic: str
) -> None:
    old = cluster.version.startswith("4.")
    async with Producer("weaker", namesrv=cluster.namesrv, config=ONCE) as producer:
        slave.pause()
        try:
            frozen = await producer.send(Message(topic, b"0"))
        finally:
            slave.resume()
        assert frozen.status is SendStatus.FLUSH_SLAVE_TIMEOUT

        await asyncio.to_thread(slave.kill)
        without = await producer.send(Message(topic, b"1"))
        missing = SendStatus.SLAVE_NOT_AVAILABLE if old else SendStatus.FLUSH_SLAVE_TIMEOUT
        assert without.status is missing
        await asyncio.to_thread(slave.start)
        await wait_end(slave.address, topic, 3)
        assert (await producer.send(Message(topic, b"2"))).ok
