"""Lite pull consumers that are closed while a broker is dead, silent or busy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import pytest
import pytest_asyncio

from rocketmq_aio.config import ClientConfig
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from tests.fakes.cluster import FakeCluster
from tests.fakes.proxy import FaultProxy
from tests.fakes.script import Reply
from tests.unit.consumer.consuming import (
    TOPIC,
    consumer_of,
    numbers,
    polled,
    put,
)
from tests.unit.instance.guests import nothing_left

QUICK: Final = 0.3  # a request timeout that a test can wait for


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(topics={TOPIC: 2}) as cluster:
        yield cluster


@pytest_asyncio.fixture
async def proxy(cluster: FakeCluster) -> AsyncIterator[FaultProxy]:
    """Between the consumers of a test and the broker."""
    async with FaultProxy(cluster.broker.address) as proxy:
        yield proxy


def through(proxy: FaultProxy, cluster: FakeCluster) -> ClientConfig:
    return ClientConfig(
        namesrv=cluster.namesrv,
        address_mapper=proxy.map_address,
        request_timeout_seconds=QUICK,
        connect_timeout_seconds=QUICK,
    )


@pytest.mark.parametrize("fault", ["dead", "silent", "busy"])
async def test_a_close_is_bounded_and_leaves_nothing_whatever_the_broker_does(
    cluster: FakeCluster, proxy: FaultProxy, fault: str
) -> None:
    put(cluster, *numbers(3))
    async with nothing_left():
        consumer = consumer_of(cluster, client=through(proxy, cluster))
        await consumer.subscribe(TOPIC)
        await consumer.start()
        await polled(consumer, 3)
        await consumer.poll(0)
        faults: dict[str, Callable[[], Awaitable[None] | None]] = {
            "dead": cluster.broker.stop,
            "silent": proxy.stall,
            "busy": lambda: cluster.broker.on(
                RequestCode.UPDATE_CONSUMER_OFFSET, Reply(ResponseCode.SYSTEM_BUSY), times=None
            ),
        }
        outcome = faults[fault]()
        if outcome is not None:
            await outcome
        await asyncio.wait_for(consumer.close(), 3)
        proxy.flow()
    if fault == "dead":
        await cluster.broker.start()
