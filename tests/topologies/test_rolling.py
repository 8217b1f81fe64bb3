"""Rolling upgrades and killed brokers, under load of several kinds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from rocketmq_aio.testing import Cluster
from tests.topologies.workload import Workload

QUEUES = 4
OLD, NEW = "4.9.7", "5.5.0"


@pytest.fixture(scope="module")
def pair(rocketmq_backend: str) -> Iterator[Cluster]:
    """Two masters of 4.9.7, which a test upgrades, and a name server of 5.5.0."""
    with Cluster.start(NEW, backend=rocketmq_backend, broker_versions=(OLD, OLD)) as cluster:
        yield cluster


@pytest_asyncio.fixture
async def topic(pair: Cluster, rocketmq_group: str) -> AsyncIterator[str]:
    name = f"rolling-{rocketmq_group[-12:]}"
    await asyncio.to_thread(pair.create_topic, name, queues=QUEUES)
    yield name
    await asyncio.to_thread(pair.delete_topic, name)


@pytest.mark.essential
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
