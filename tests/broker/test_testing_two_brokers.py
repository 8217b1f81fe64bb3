"""`rocketmq_aio.testing` with two masters; a separate module limits concurrent servers."""

from __future__ import annotations

from rocketmq_aio.testing import Cluster, probe


def test_two_brokers_share_a_topic(two_broker_cluster: Cluster) -> None:
    two_broker_cluster.create_topic("shared", queues=1)

    found = probe.masters(two_broker_cluster.namesrvs[0].address, "shared")

    assert set(found) == {"broker-a", "broker-b"}


def test_a_topic_can_be_created_on_one_broker_only(two_broker_cluster: Cluster) -> None:
    second = two_broker_cluster.brokers[1]

    two_broker_cluster.create_topic("alone", queues=1, brokers=[second])

    found = probe.masters(two_broker_cluster.namesrvs[0].address, "alone")
    assert found == {second.name: second.address}
