"""Groups with dead letters, and without."""

from __future__ import annotations

from typing import Any

import pytest
from anyio import to_thread

from rocketmq_aio.errors import RocketMQError
from rocketmq_aio.spark.options import Connection
from rocketmq_aio.spark.pipelines import brokers
from rocketmq_aio.spark.pipelines.dead_letter import DeadLetterSettings, _planned, dead_letters
from tests.fakes.cluster import FakeCluster
from tests.unit.spark.reading import tell_brokers

NO_SPARK: Any = None


def settings_of(cluster: FakeCluster) -> DeadLetterSettings:
    return DeadLetterSettings(connection=Connection(name_server=cluster.namesrv), group="billing")


async def test_a_group_without_dead_letters_has_none_and_no_spark_is_asked() -> None:
    async with FakeCluster(topics={"orders": 1}) as cluster:
        tell_brokers(cluster, "broker-a")
        summary = await to_thread.run_sync(dead_letters, NO_SPARK, settings_of(cluster))

    assert (summary.offsets, summary.queues, summary.complete) == (0, (), True)


async def test_dead_letters_are_planned() -> None:
    async with FakeCluster(topics={"%DLQ%billing": 1}) as cluster:
        cluster.broker.put("%DLQ%billing", b"letter")
        ranges = await to_thread.run_sync(_planned, settings_of(cluster))

    assert [each.size for each in ranges] == [1]


async def test_where_no_broker_is_known_nothing_is_claimed() -> None:
    async with FakeCluster() as cluster:
        cluster.name_server.unregister(cluster.broker)
        settings = settings_of(cluster)
        assert not await to_thread.run_sync(brokers.has_route, settings.connection, settings.topic)
        with pytest.raises(RocketMQError):
            await to_thread.run_sync(_planned, settings)
