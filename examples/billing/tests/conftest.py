"""Fixtures of the tests, beyond those that the package brings."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from examples.billing.app import RECEIPTS, billing
from examples.billing.tests.bank import FakeBank
from examples.billing.tests.shop import RunWith, Shop
from rocketmq_aio import LitePullConfig, LitePullConsumer, Producer
from rocketmq_aio.testing import Cluster


@pytest.fixture
def receipts_topic(rocketmq: Cluster, rocketmq_topic: str) -> str:
    topic = f"{rocketmq_topic}-receipts"
    rocketmq.create_topic(topic, queues=2)
    return topic


@pytest.fixture
def run_with(
    rocketmq_namesrv: str, rocketmq_topic: str, rocketmq_group: str, receipts_topic: str
) -> RunWith:
    """Return a function that runs the application with a bank, and a shop beside it."""
    namesrv, orders_topic, shop_group = rocketmq_namesrv, rocketmq_topic, f"{rocketmq_topic}-shop"
    config = LitePullConfig(start_from="earliest", codec=RECEIPTS)

    @asynccontextmanager
    async def running(bank: FakeBank) -> AsyncIterator[Shop]:
        async with (
            Producer(shop_group, namesrv=namesrv) as producer,
            LitePullConsumer(shop_group, namesrv=namesrv, config=config) as consumer,
            billing(
                bank,
                namesrv=namesrv,
                orders_topic=orders_topic,
                receipts_topic=receipts_topic,
                group=rocketmq_group,
            ),
        ):
            await consumer.subscribe(receipts_topic)
            yield Shop(producer, consumer, orders_topic)

    return running
