"""Fixture: a transaction producer on a scripted cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.unit.producer.transaction_env import TransactionEnv, open_transactions


@pytest_asyncio.fixture
async def env() -> AsyncIterator[TransactionEnv]:
    async with open_transactions() as env:
        yield env
