"""Controller mode: producers and consumers follow the master of a broker name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from rocketmq_aio.testing import Cluster, ControlledBroker
from tests.topologies.controlled import (
    WAIT_SECONDS,
    Load,
    create_topic,
    in_sync_broker,
    rejoin,
    start_controlled,
)
from tests.unit.remoting.until import until


@pytest.fixture(scope="module")
def controlled(rocketmq_backend: str, rocketmq_version: str) -> Iterator[Cluster]:
    with start_controlled(rocketmq_version, rocketmq_backend) as cluster:
        yield cluster


@pytest.fixture
def broker(controlled: Cluster) -> ControlledBroker:
    """The replicas, all in sync."""
    return in_sync_broker(controlled)


@pytest.mark.essential
async def test_nothing_confirmed_is_lost_in_two_failovers(
    controlled: Cluster, broker: ControlledBroker
) -> None:
    load = Load(
        controlled.namesrv, create_topic(controlled, "sales"), create_topic(controlled, "ordered")
    )
    first = broker.find_master()
    async with load.running():
        await load.progress()
        first.kill()
        second = await asyncio.to_thread(broker.wait_new_master, first)
        await load.progress()
        await asyncio.to_thread(rejoin, broker, broker.replicas.index(first))
        assert broker.find_master() is second  # the former master is a slave now
        await load.progress()

        second.kill()
        third = await asyncio.to_thread(broker.wait_new_master, second)
        await load.progress()
        await until(lambda: not load.missing(), "every confirmed message", WAIT_SECONDS)

    assert third is not second
    assert load.failed == []
    assert load.disordered() == []
    assert load.corrections() == []
    await asyncio.to_thread(rejoin, broker, broker.replicas.index(second))


async def test_clients_leave_a_frozen_master(controlled: Cluster, broker: ControlledBroker) -> None:
    load = Load(
        controlled.namesrv, create_topic(controlled, "sales2"), create_topic(controlled, "ordered2")
    )
    first = broker.find_master()
    async with load.running():
        await load.progress()
        first.pause()
        try:
            second = await asyncio.to_thread(broker.wait_new_master, first)
            await load.progress()
        finally:
            first.resume()
        await asyncio.to_thread(broker.wait_in_sync)
        assert broker.find_master() is second
        await load.progress()
        await until(lambda: not load.missing(), "every confirmed message", WAIT_SECONDS)

    assert load.failed == []
    assert load.disordered() == []
