"""Replicas that elect their master (DLedger), the failover of RocketMQ 4.9; also in 5.x."""

from __future__ import annotations

import asyncio

import pytest

from rocketmq_aio.testing import Cluster, ControlledBroker
from tests.topologies.controlled import create_topic
from tests.topologies.workload import Workload

QUEUES = 4
FAILOVER_SECONDS = 120.0
FAILOVERS = 2


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
async def test_nothing_is_lost_when_replicas_elect_another_master(
    rocketmq_backend: str, rocketmq_group: str, version: str
) -> None:
    with Cluster.start(version, backend=rocketmq_backend, slaves=2, dledger=True) as cluster:
        topic = f"elected-{rocketmq_group[-12:]}"
        (broker,) = cluster.brokers
        assert isinstance(broker, ControlledBroker)
        await asyncio.to_thread(create_topic, cluster, topic, QUEUES)
        async with Workload(cluster.namesrv, topic) as load:
            for _ in range(FAILOVERS):
                await load.until_more()
                old = broker.find_master()
                await asyncio.to_thread(old.kill)
                await asyncio.to_thread(broker.wait_new_master, old)
                await load.until_more(seconds=FAILOVER_SECONDS)
                await asyncio.to_thread(old.start)
            await load.until_more()
            await load.finish()

    assert load.disorder("orderly") == load.disorder("lite-pull") == []
