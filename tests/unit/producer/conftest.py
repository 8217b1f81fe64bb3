"""Fixtures: a producer on a scripted cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.unit.producer.producer_env import ProducerEnv, open_producer


@pytest_asyncio.fixture
async def env() -> AsyncIterator[ProducerEnv]:
    async with open_producer() as env:
        yield env


@pytest_asyncio.fixture
async def two_brokers() -> AsyncIterator[ProducerEnv]:
    async with open_producer(brokers=2) as env:
        yield env
