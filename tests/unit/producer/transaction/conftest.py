"""Fixture: a transaction producer on a scripted cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from rocketmq_aio.producer.transaction import end_transaction
from tests.unit.producer.transaction_env import TransactionEnv, open_transactions


@pytest.fixture(autouse=True)
def records_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripted brokers record the end of a transaction before they respond."""
    monkeypatch.setattr(end_transaction, "RECORD_SECONDS", 0.0)
    monkeypatch.setattr(end_transaction, "LATE_SECONDS", 0.0)


@pytest_asyncio.fixture
async def env() -> AsyncIterator[TransactionEnv]:
    async with open_transactions() as env:
        yield env
