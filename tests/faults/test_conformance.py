"""Conformance of the fakes: the same cases run on real servers (`tests/broker`)."""

from __future__ import annotations

import pytest

from tests.fakes.cluster import FakeCluster
from tests.fakes.conformance import CASES, Case, CaseEnv
from tests.fakes.conformance.case_env import QUEUES
from tests.fakes.conformance.light_queues import CASES as WITH_LIGHT_QUEUES


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
@pytest.mark.parametrize("case", [*CASES, *WITH_LIGHT_QUEUES], ids=lambda case: case.__name__)
async def test_the_fake_responds_like_a_real_broker(case: Case, version: str) -> None:
    light = case in WITH_LIGHT_QUEUES
    async with FakeCluster(
        version=version, topics={"orders": QUEUES}, light_queues=light
    ) as cluster:
        env = CaseEnv(
            namesrv=cluster.namesrv,
            broker=cluster.broker.address,
            version=version,
            topic="orders",
            group="billing",
        )

        await case(env)
