"""Broker client: typed calls to brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.errors import (
    BrokerError,
    CodecError,
    NotConnectedError,
    RouteNotFoundError,
    SubscriptionError,
)
from rocketmq_aio.instance.broker_client import BrokerClient
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.model.values import MessageQueue, MessageSelector
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.subscription import subscription
from tests.fakes.cluster import FakeCluster
from tests.fakes.name_server import PROXY_FIELDS

QUEUE = MessageQueue("orders", "broker-a", 0)
ELSEWHERE = MessageQueue("orders", "broker-z", 0)

Ask = Callable[[BrokerClient, MessageQueue], Awaitable[object]]
ASKED: dict[int, Ask] = {
    RequestCode.QUERY_CONSUMER_OFFSET: lambda broker, queue: broker.query_offset("billing", queue),
    RequestCode.UPDATE_CONSUMER_OFFSET: lambda broker, queue: broker.update_offset(
        "billing", queue, 7
    ),
    RequestCode.GET_MAX_OFFSET: lambda broker, queue: broker.max_offset(queue),
    RequestCode.GET_MIN_OFFSET: lambda broker, queue: broker.min_offset(queue),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: lambda broker, queue: broker.offset_for_time(queue, 0),
}


@asynccontextmanager
async def asking(brokers: int = 1) -> AsyncIterator[tuple[FakeCluster, BrokerClient]]:
    async with FakeCluster(brokers=brokers, topics={"orders": 2}) as cluster:
        config = ClientConfig(namesrv=cluster.namesrv, request_timeout_seconds=2.0)
        async with MQClientInstance(config) as client:
            await client.routes.get("orders")
            yield cluster, client.broker


async def test_offsets_of_a_queue_are_read() -> None:
    async with asking() as (cluster, broker):
        for number in range(3):
            cluster.broker.put("orders", b"%d" % number)

        assert await broker.max_offset(QUEUE) == 3
        assert await broker.min_offset(QUEUE) == 0
        assert await broker.offset_for_time(QUEUE, 0) == 0


async def test_query_offset_returns_the_committed_offset() -> None:
    async with asking() as (cluster, broker):
        cluster.broker.state.ensure_group("billing")
        await broker.update_offset("billing", QUEUE, 7)

        assert cluster.broker.committed("billing", "orders", 0) == 7
        assert await broker.query_offset("billing", QUEUE) == 7


async def test_no_offset_and_an_unknown_offset_differ() -> None:
    async with asking() as (cluster, broker):
        cluster.broker.put("orders", b"not young any more")
        assert await broker.query_offset("billing", QUEUE) is None
        cluster.faults.refuse("query_offset", 1, "broken")
        with pytest.raises(BrokerError, match="broken"):
            await broker.query_offset("billing", QUEUE)


@pytest.mark.parametrize("code", ASKED)
async def test_a_rejection_raises_with_code_and_remark_of_the_broker(code: int) -> None:
    async with asking() as (cluster, broker):
        cluster.faults.refuse(code, 14, "not now")

        with pytest.raises(BrokerError) as caught:
            await ASKED[code](broker, QUEUE)
        assert (caught.value.code, caught.value.remark) == (14, "not now")
        assert caught.value.address == cluster.broker.address


@pytest.mark.parametrize("code", set(ASKED) - {RequestCode.UPDATE_CONSUMER_OFFSET})
async def test_an_answer_without_its_field_is_a_codec_error(code: int) -> None:
    async with asking() as (cluster, broker):
        cluster.faults.handle(code, Response(ext={"other": "1"}))

        with pytest.raises(CodecError):
            await ASKED[code](broker, QUEUE)


@pytest.mark.parametrize("code", ASKED)
async def test_a_queue_of_an_unknown_broker_raises(code: int) -> None:
    async with asking() as (cluster, broker):
        with pytest.raises(NotConnectedError, match="broker-z"):
            await ASKED[code](broker, ELSEWHERE)

        assert cluster.broker.requests == []


async def test_the_members_of_a_group_are_listed() -> None:
    async with asking() as (cluster, broker):
        listed = Response(body=b'{"consumerIdList":["a","b"]}')
        cluster.faults.handle("members", listed)

        assert await broker.consumer_ids_at("billing", broker.any_broker("orders")) == ["a", "b"]


async def test_a_group_without_members_is_empty_and_a_failure_is_not() -> None:
    async with asking() as (cluster, broker):
        assert await broker.consumer_ids_at("billing", broker.any_broker("orders")) == []
        cluster.faults.refuse("members", 1, "broken")

        with pytest.raises(BrokerError, match="broken"):
            await broker.consumer_ids_at("billing", broker.any_broker("orders"))


async def test_a_failure_that_quotes_the_answer_about_no_members_is_raised() -> None:
    async with asking() as (cluster, broker):
        remark = "proxy failed: no consumer for this group, billing"
        cluster.faults.refuse("members", 1, remark)

        with pytest.raises(BrokerError, match="proxy failed"):
            await broker.consumer_ids_at("billing", broker.any_broker("orders"))


@pytest.mark.parametrize("remark", [None, 'because "consumerGroupInfo" is null'])
async def test_a_proxy_that_does_not_know_a_group_has_no_members(remark: str | None) -> None:
    """Java 8 has no text for a NullPointerException."""
    response = Response(1, PROXY_FIELDS, remark=remark)
    async with asking() as (cluster, broker):
        cluster.faults.handle("members", response)

        assert await broker.consumer_ids_at("billing", broker.any_broker("orders")) == []


async def test_another_failure_of_a_proxy_is_raised() -> None:
    async with asking() as (cluster, broker):
        response = Response(1, PROXY_FIELDS, remark="broken")
        cluster.faults.handle("members", response)

        with pytest.raises(BrokerError, match="broken"):
            await broker.consumer_ids_at("billing", broker.any_broker("orders"))


async def test_a_topic_without_a_broker_raises() -> None:
    async with asking() as (_, broker):
        with pytest.raises(RouteNotFoundError):
            await broker.consumer_ids_at("billing", broker.any_broker("nowhere"))


async def test_an_invalid_filter_raises() -> None:
    async with asking() as (_, broker):
        good = subscription("orders", MessageSelector.by_sql("price > 3"), 1)
        bad = subscription("orders", MessageSelector.by_sql("a >"), 1)
        await broker.check_filter("me", "billing", good)

        with pytest.raises(SubscriptionError):
            await broker.check_filter("me", "billing", bad)
