"""Conformance of real servers: the same cases run on the fakes (`tests/faults`)."""

from __future__ import annotations

import pytest

from rocketmq_aio.testing import Cluster
from tests.fakes.conformance import CASES, Case, CaseEnv


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_a_real_broker_responds_like_the_fake(
    case: Case, rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str
) -> None:
    env = CaseEnv(
        namesrv=rocketmq_cluster.namesrvs[0].address,
        broker=rocketmq_cluster.brokers[0].address,
        version=rocketmq_cluster.version,
        topic=rocketmq_topic,
        group=rocketmq_group,
    )

    await case(env)
