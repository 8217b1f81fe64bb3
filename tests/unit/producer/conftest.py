"""Fixtures: a producer on a scripted cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import pytest
import pytest_asyncio

from rocketmq_aio.producer import retry as retry_module
from rocketmq_aio.remoting.backoff import Backoff
from tests.unit.producer.producer_env import ProducerEnv, open_producer


@pytest_asyncio.fixture
async def env() -> AsyncIterator[ProducerEnv]:
    async with open_producer() as env:
        yield env


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is tried once more gets 2 ms instead of 200."""
    monkeypatch.setattr(retry_module, "Backoff", partial(Backoff, first=0.001))


@pytest_asyncio.fixture
async def two_brokers() -> AsyncIterator[ProducerEnv]:
    async with open_producer(brokers=2) as env:
        yield env
