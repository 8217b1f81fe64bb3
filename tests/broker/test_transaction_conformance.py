"""Real brokers handle half messages like the fake one (`tests/faults`)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rocketmq_aio.testing import Cluster
from tests.fakes.conformance.case_env import CaseEnv
from tests.fakes.conformance.transactions import CASES, TransactionCase


@pytest.fixture(scope="module")
def cluster(fresh_cluster: Callable[..., Cluster]) -> Cluster:
    """A broker with a short check interval."""
    return fresh_cluster(
        broker_properties={"transactionTimeOut": "1000", "transactionCheckInterval": "1000"}
    )


async def asks_by_itself() -> None:
    """Do nothing: a real broker has a clock."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_a_real_broker_handles_half_messages_like_the_fake_one(
    case: TransactionCase, cluster: Cluster, rocketmq_group: str
) -> None:
    topic = f"half-{rocketmq_group[-12:]}"
    cluster.create_topic(topic, queues=4)
    env = CaseEnv(
        cluster.namesrvs[0].address,
        cluster.brokers[0].address,
        cluster.version,
        topic,
        rocketmq_group,
    )

    await case(env, asks_by_itself)
