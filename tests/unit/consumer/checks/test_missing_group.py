"""MissingGroup: brokers that create no groups, and do not know the one of a consumer."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from rocketmq_aio import ClientConfig, PullFailed
from rocketmq_aio.consumer.lite_pull.consumer import LitePullConsumer
from rocketmq_aio.consumer.push.consumer import PushConsumer
from rocketmq_aio.consumer.rebalance import rebalancer
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.protocol.bodies import ConsumerList
from rocketmq_aio.protocol.codes import RequestCode
from tests.fakes.cluster import FakeCluster
from tests.unit.consumer.lite_pull_env import GROUP, TOPIC, consumer_of
from tests.unit.consumer.pushing import push_consumer

LIST = RequestCode.GET_CONSUMER_LIST_BY_GROUP


@pytest_asyncio.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeCluster]:
    """A cluster without the group, and frequent rounds."""
    monkeypatch.setattr(rebalancer, "INCOMPLETE_SECONDS", 0.01)
    monkeypatch.setattr(rebalancer, "LEAST_SECONDS", 0.01)
    async with FakeCluster(topics={TOPIC: 4}, auto_create_groups=False) as cluster:
        yield cluster


async def handle(_message: object) -> None:
    """A handler for push consumers."""


def make(kind: str, cluster: FakeCluster) -> LitePullConsumer | PushConsumer:
    client = ClientConfig(namesrv=cluster.namesrv)
    if kind == "lite":
        return consumer_of(cluster, client=client)
    settings: dict[str, Any] = {"client_rebalance": False} if kind == "assigned" else {}
    return push_consumer(cluster, handler=handle, client=client, **settings)


@pytest.mark.parametrize("kind", ["lite", "push", "assigned"])
async def test_a_missing_group_is_reported_once_until_it_is_created(
    cluster: FakeCluster, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="rocketmq_aio")
    async with make(kind, cluster) as consumer:
        events = consumer.events()
        await consumer.subscribe(TOPIC)
        failed = await anext(events)
        rounds = len(cluster.broker.requests_of(LIST))
        await cluster.broker.wait_for(LIST, rounds + 20)
        cluster.create_group(GROUP)
        await consumer.ready(15)

    assert isinstance(failed, PullFailed)
    assert failed.queue.topic == TOPIC
    assert f"[{GROUP}]" in failed.reason
    assert not any([isinstance(event, PullFailed) async for event in events])
    assert caplog.text.count("pull_failed") == 1


async def test_a_broker_that_only_does_not_list_the_member_is_not_reported(
    cluster: FakeCluster,
) -> None:
    cluster.create_group(GROUP)
    nobody = msgspec.json.encode(ConsumerList(consumer_id_list=[]))
    cluster.faults.handle("members", Response(body=nobody), times=20)
    async with make("lite", cluster) as consumer:
        events = consumer.events()
        await consumer.subscribe(TOPIC)
        await cluster.broker.wait_for(RequestCode.PULL_MESSAGE, 2)
        await consumer.ready(15)

    assert not any([isinstance(event, PullFailed) async for event in events])
