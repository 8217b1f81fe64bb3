"""Conformance of the fakes: the same cases run on real servers (`tests/broker`)."""

from __future__ import annotations

import pytest

from tests.fakes.cluster import FakeCluster
from tests.fakes.conformance import CASES, Case, CaseEnv
from tests.fakes.conformance.case_env import QUEUES


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_the_fake_responds_like_a_real_broker(case: Case, version: str) -> None:
    async with FakeCluster(version=version, topics={"orders": QUEUES}) as cluster:
        env = CaseEnv(
            namesrv=cluster.namesrv,
            broker=cluster.broker.address,
            version=version,
            topic="orders",
            group="billing",
        )

        await case(env)
