"""Name servers that fail, come back empty or move, under load of every kind of client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from time import monotonic
from typing import Final

import pytest
import pytest_asyncio

from rocketmq_aio import (
    AdminClient,
    ClientConfig,
    Message,
    MessageExt,
    NameServerUnavailableError,
    Producer,
    PushConfig,
    PushConsumer,
)
from rocketmq_aio.testing import Cluster
from tests.broker.reading_groups import bodies, consuming, polled, send
from tests.fakes.address_server import FakeAddressServer
from tests.soak.flows import PlainToPush, number_of
from tests.soak.servers import PROPERTIES
from tests.topologies.flows import Flows
from tests.unit.remoting.until import until

DOWN_SECONDS: Final = 60.0  # every client refreshes its routes and sends heartbeats twice
LIST_SECONDS: Final = "0.5"  # between two requests for the list of name servers


@pytest.fixture(scope="module")
def cluster(rocketmq_backend: str, rocketmq_version: str) -> Iterator[Cluster]:
    """Two masters and three name servers; each test leaves all of them running."""
    with Cluster.start(
        rocketmq_version,
        backend=rocketmq_backend,
        brokers=2,
        namesrvs=3,
        broker_properties=PROPERTIES,
    ) as running:
        yield running


@pytest.fixture
def suffix(rocketmq_group: str) -> str:
    return rocketmq_group[-12:]


@pytest.fixture(autouse=True)
def restored(cluster: Cluster) -> Iterator[None]:
    """Start the name servers that a test has killed."""
    yield
    for server in cluster.namesrvs:
        if server.pid is None:
            server.start()
    cluster.wait_ready()


@pytest_asyncio.fixture
async def flows(cluster: Cluster, suffix: str) -> Flows:
    made = Flows(cluster.namesrv, suffix)
    await asyncio.to_thread(made.create_topics, cluster)
    return made


async def create_late(namesrv: str, topic: str) -> None:
    """Create a topic; brokers respond when name servers that are frozen have timed out."""
    client = ClientConfig(namesrv=namesrv, request_timeout_seconds=60.0)
    async with AdminClient(client=client) as admin:
        await admin.create_topic(topic, read_queues=1, write_queues=1)


def second_member(flows: Flows, namesrv: str) -> PushConsumer:
    """Return another member of the group that receives plain sends."""
    flow = flows.of(PlainToPush)

    async def receive(message: MessageExt) -> None:
        flow.ledger.receive(number_of(message))

    config = PushConfig(start_from="earliest")
    return PushConsumer(f"{flow.topic}-group", on_message=receive, namesrv=namesrv, config=config)


async def test_every_client_runs_on_without_name_servers_and_with_empty_ones(
    cluster: Cluster, flows: Flows, suffix: str
) -> None:
    late = f"late-{suffix}"
    member = second_member(flows, cluster.namesrv)
    await member.subscribe(flows.of(PlainToPush).topic)
    async with flows:
        async with member:
            await member.ready()
            await flows.progress()
            for server in cluster.namesrvs:
                await asyncio.to_thread(server.kill)
            end = monotonic() + DOWN_SECONDS
            await flows.progress()
            with pytest.raises(NameServerUnavailableError):
                await Producer("late", namesrv=cluster.namesrv).start()
        # Its queues go to the other member.
        while monotonic() < end:
            await flows.progress()
        # They know no broker until these register again, within ten seconds.
        await asyncio.gather(*(asyncio.to_thread(each.start) for each in cluster.namesrvs))
        await flows.progress()
        await asyncio.to_thread(cluster.wait_ready)
        await asyncio.to_thread(cluster.create_topic, late, queues=1)
        await flows.of(PlainToPush).producer.send(Message(late, b"of a running client"))
        await send(cluster.namesrv, late, ["of a new client"])
        await flows.progress()
        await flows.finish()

    assert flows.errors() == {}
    assert flows.disordered() == 0
    assert flows.copies() == {}


async def test_one_name_server_of_three_is_enough(
    cluster: Cluster, flows: Flows, suffix: str
) -> None:
    late = f"late-{suffix}"
    killed, frozen, last = cluster.namesrvs
    async with flows:
        await flows.progress()
        await asyncio.to_thread(killed.kill)
        frozen.pause()
        try:
            await flows.progress()
            await create_late(last.address, late)
            await flows.of(PlainToPush).producer.send(Message(late, b"of a running client"))
            await send(cluster.namesrv, late, ["of a new client"])
            async with consuming(cluster.namesrv, f"new-{suffix}", late) as consumer:
                received = await polled(consumer, 2)
            await flows.progress()
        finally:
            frozen.resume()
        await asyncio.to_thread(killed.start)
        await flows.progress()
        await flows.finish()

    assert sorted(bodies(received)) == ["of a new client", "of a running client"]
    assert flows.errors() == {}
    assert flows.disordered() == 0
    assert flows.copies() == {}


async def test_name_servers_that_an_address_server_moves_are_followed(
    cluster: Cluster, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROCKETMQ_NAMESRV_REFRESH_INTERVAL_SECONDS", LIST_SECONDS)
    late = f"late-{suffix}"
    first, second, third = cluster.namesrvs
    async with FakeAddressServer(first.address) as page:
        flows = Flows(page.url, suffix)
        await asyncio.to_thread(flows.create_topics, cluster)
        async with flows:
            await flows.progress()
            page.addresses = f"{second.address};{third.address}"
            clients = [client.client for flow in flows.all for client in flow.clients]
            await until(
                lambda: all(first.address not in each.name_servers.addresses for each in clients),
                "every client to have the new list",
                60,
            )
            await asyncio.to_thread(first.kill)
            await flows.progress()
            await create_late(second.address, late)
            await flows.of(PlainToPush).producer.send(Message(late, b"late"))
            await flows.progress()
            await flows.finish()

    assert flows.errors() == {}
    assert flows.disordered() == 0
    assert flows.copies() == {}
