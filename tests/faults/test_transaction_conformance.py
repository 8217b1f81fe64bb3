"""The fake broker handles half messages like real ones (`tests/broker`)."""

from __future__ import annotations

import pytest

from tests.fakes.cluster import FakeCluster
from tests.fakes.conformance.case_env import QUEUES, CaseEnv
from tests.fakes.conformance.transactions import CASES, TransactionCase


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_the_fake_broker_handles_half_messages_like_a_real_one(
    case: TransactionCase, version: str
) -> None:
    async with FakeCluster(version=version, topics={"orders": QUEUES}) as cluster:
        broker = cluster.broker
        env = CaseEnv(cluster.namesrv, broker.address, version, "orders", "billing")

        await case(env, broker.check_transactions)
