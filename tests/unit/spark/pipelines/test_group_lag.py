"""Where a group is, looked at without disturbing it."""

from __future__ import annotations

import pytest

from rocketmq_aio import ClientConfig, MQClientInstance, PullConsumer
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.protocol.header import read_header
from rocketmq_aio.protocol.requests.pull import PullMessage
from rocketmq_aio.spark.pipelines.group_lag import TOOLS, QueueLag, lags_of
from tests.fakes.cluster import FakeCluster
from tests.fakes.script import Reply
from tests.unit.spark.driving import TOPIC, put_at


async def looked_at(cluster: FakeCluster) -> QueueLag:
    config = ClientConfig(namesrv=cluster.namesrv)
    async with (
        MQClientInstance(config) as instance,
        PullConsumer("billing", client=instance) as asker,
        PullConsumer(TOOLS, client=instance) as reader,
    ):
        (lag,) = await lags_of(asker, reader, (TOPIC,))
        return lag


async def test_nobody_pulls_as_the_group() -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        put_at(cluster.broker, 1000, 2000)
        lag = await looked_at(cluster)
        pulls = cluster.broker.requests_of(RequestCode.PULL_MESSAGE)

    assert (lag.lag, lag.next_time and lag.next_time.timestamp()) == (2, 1)
    assert {read_header(each, PullMessage).consumer_group for each in pulls} == {TOOLS}


@pytest.mark.parametrize(
    "code", [ResponseCode.NO_PERMISSION, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST]
)
async def test_an_account_that_may_not_look_sees_the_numbers(code: int) -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster:
        put_at(cluster.broker, 1000, 2000)
        cluster.broker.on(RequestCode.PULL_MESSAGE, Reply(code, remark="no"), times=None)
        lag = await looked_at(cluster)

    assert (lag.lag, lag.next_time) == (2, None)
