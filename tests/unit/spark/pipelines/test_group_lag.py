"""Lag of a group, read without joining it."""

from __future__ import annotations

import pytest
from anyio import to_thread

from rocketmq_aio import ClientConfig, MQClientInstance, PullConsumer
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.protocol.header import read_header
from rocketmq_aio.protocol.requests.pull import PullMessage
from rocketmq_aio.spark.options.source_options import Connection
from rocketmq_aio.spark.pipelines.group_lag import TOOLS, LagSettings, QueueLag, lag, lags_of
from tests.fakes.cluster import FakeCluster
from tests.unit.spark.driving import TOPIC, put_at


async def test_a_group_without_offsets_and_members_is_unused() -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        put_at(cluster.broker, 1000)
        connection = Connection(name_server=cluster.namesrv, group="tpyo")
        settings = LagSettings(connection=connection, topics=(TOPIC,))

        unknown = await to_thread.run_sync(lag, settings)
        cluster.broker.create_group("tpyo")
        consumer = PullConsumer("tpyo", namesrv=cluster.namesrv)
        async with consumer:
            await consumer.commit((await consumer.message_queues(TOPIC))[0], 1)
        known = await to_thread.run_sync(lag, settings)

    assert (unknown.unused, unknown.to_dict()["unused"], unknown.lag) == (True, True, 1)
    assert not known.unused


async def looked_at(cluster: FakeCluster) -> QueueLag:
    config = ClientConfig(namesrv=cluster.namesrv)
    async with (
        MQClientInstance(config) as instance,
        PullConsumer("billing", client=instance) as asker,
    ):
        (lag,) = await lags_of(instance, asker, (TOPIC,))
        return lag


async def test_lag_does_not_pull_as_the_group() -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        put_at(cluster.broker, 1000, 2000)
        lag = await looked_at(cluster)
        pulls = cluster.broker.requests_of(RequestCode.PULL_MESSAGE)

    assert (lag.lag, lag.next_time and lag.next_time.timestamp()) == (2, 1)
    assert {read_header(each, PullMessage).consumer_group for each in pulls} == {TOOLS}


@pytest.mark.parametrize(
    "code", [ResponseCode.NO_PERMISSION, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST]
)
async def test_lag_has_no_times_without_read_permission(code: int) -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        put_at(cluster.broker, 1000, 2000)
        cluster.faults.refuse(RequestCode.PULL_MESSAGE, code, "no", times=None)
        lag = await looked_at(cluster)

    assert (lag.lag, lag.next_time) == (2, None)
