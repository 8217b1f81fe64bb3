"""Controllers in processes of their own: failovers while one of three is missing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from rocketmq_aio.testing import Cluster, ControlledBroker, probe
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
def cluster(rocketmq_backend: str, rocketmq_version: str) -> Iterator[Cluster]:
    """Two replicas of a broker, and three controllers."""
    with start_controlled(rocketmq_version, rocketmq_backend, slaves=1, controllers=3) as running:
        yield running


@pytest.fixture
def broker(cluster: Cluster) -> ControlledBroker:
    """The replicas, all in sync."""
    return in_sync_broker(cluster)


def wait_leader(cluster: Cluster) -> None:
    probe.wait_until(cluster.find_leader, seconds=60, what="no controller leads")


async def test_masters_are_replaced_while_a_controller_is_missing(
    cluster: Cluster, broker: ControlledBroker
) -> None:
    load = Load(cluster.namesrv, create_topic(cluster, "sales"), create_topic(cluster, "ordered"))
    first = broker.find_master()
    leader = cluster.find_leader()
    follower = next(each for each in cluster.controllers if each is not leader)
    async with load.running():
        await load.progress()
        await asyncio.to_thread(follower.kill)
        await load.progress()
        first.kill()
        second = await asyncio.to_thread(broker.wait_new_master, first)
        await load.progress()
        await asyncio.to_thread(follower.start)
        await asyncio.to_thread(rejoin, broker, broker.replicas.index(first))

        # Clients do not use controllers; a failover waits until another one leads.
        leader.kill()
        await load.progress()
        await asyncio.to_thread(wait_leader, cluster)
        second.kill()
        third = await asyncio.to_thread(broker.wait_new_master, second)
        await load.progress()
        await until(lambda: not load.missing(), "every confirmed message", WAIT_SECONDS)

    assert third is first
    assert load.failed == []
    assert load.disordered() == []
    assert load.corrections() == []
    await asyncio.to_thread(leader.start)
    await asyncio.to_thread(rejoin, broker, broker.replicas.index(second))
