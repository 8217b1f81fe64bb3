"""The fake broker does with half messages what real ones do (`tests/broker`)."""

from __future__ import annotations

import pytest

from tests.fakes.cluster import FakeCluster
from tests.fakes.conformance.ground import QUEUES, Ground
from tests.fakes.conformance.transactions import CASES, TransactionCase


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_the_fake_treats_half_messages_as_a_real_broker(
    case: TransactionCase, version: str
) -> None:
    async with FakeCluster(version=version, topics={"orders": QUEUES}) as cluster:
        broker = cluster.broker
        ground = Ground(cluster.namesrv, broker.address, version, "orders", "billing")

        await case(ground, broker.ask_about_transactions)
