"""Fixtures: a fake cluster and a fault proxy."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.fakes.cluster import FakeCluster
from tests.fakes.proxy import FaultProxy
from tests.patience import patient_clients  # noqa: F401 - for every test of this folder
from tests.unit.consumer.lite_pull_env import TOPIC


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """One broker with the topic."""
    async with FakeCluster(topics={TOPIC: 2}) as cluster:
        yield cluster


@pytest_asyncio.fixture
async def proxy(cluster: FakeCluster) -> AsyncIterator[FaultProxy]:
    """Fault proxy between clients and the broker."""
    async with FaultProxy(cluster.broker.address) as proxy:
        yield proxy
