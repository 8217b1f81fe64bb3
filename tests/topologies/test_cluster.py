"""`rocketmq_aio.testing`: slaves."""

from __future__ import annotations

import pytest

from rocketmq_aio.testing import Cluster, probe


@pytest.fixture
def topic(replicated: Cluster, rocketmq_group: str) -> str:
    name = f"copied-{rocketmq_group[-12:]}"
    replicated.create_topic(name, queues=2)
    return name


def test_a_slave_has_a_copied_topic_and_stays_when_its_master_ends(
    replicated: Cluster, topic: str
) -> None:
    (master,), (slave,) = replicated.brokers, replicated.brokers[0].slaves
    namesrv = replicated.namesrvs[0].address
    both = {0: master.address, 1: slave.address}
    assert probe.members(namesrv, master.name) == both

    slave.wait_copied(topic)
    assert probe.queues(slave.address, topic) == 2

    master.kill()
    try:
        probe.wait_until(lambda: is_alone(replicated), seconds=60, what="master still registered")
        replicated.brokers[0].slaves[0].check_running()
    finally:
        master.start()
    assert probe.members(namesrv, master.name) == both


def is_alone(cluster: Cluster) -> None:
    (slave,) = cluster.brokers[0].slaves
    known = probe.members(cluster.namesrvs[0].address, "broker-a")
    if known != {1: slave.address}:
        raise probe.ProbeError(str(known))


def test_a_restarted_slave_is_registered_again(replicated: Cluster) -> None:
    (slave,) = replicated.brokers[0].slaves

    slave.kill()
    slave.start()

    replicated.check_running()
    assert probe.members(replicated.namesrvs[0].address, "broker-a")[1] == slave.address
