"""Random clients in processes of their own, and random faults, judged by `tests.history`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rocketmq_aio.testing import Cluster
from tests.chaos.cluster_run import ClusterRun, servers_of
from tests.chaos.topology import PROPERTIES, TOPOLOGIES, draw_cluster_plan

SEED = 15  # kills the broker and two processes, on both versions
FAULT_SECONDS = 20.0


@pytest.mark.timeout(400, func_only=True)
async def test_random_clients_and_faults_violate_no_rule(
    fresh_cluster: Callable[..., Cluster], rocketmq_version: str, tmp_path: Path
) -> None:
    topology, cluster = TOPOLOGIES["one"], fresh_cluster(broker_properties=PROPERTIES)
    servers = [node.name for node in servers_of(cluster)]
    plan = draw_cluster_plan(SEED, topology, rocketmq_version, servers, FAULT_SECONDS)
    run = ClusterRun(cluster, topology, plan, tmp_path)
    await run.run()

    assert run.violations == [], "\n".join([*plan.lines(), run.summary])
