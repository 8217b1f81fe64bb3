"""`rocketmq_aio.testing` with servers in containers."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Final

import docker
import pytest

from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.testing import Broker, Cluster, probe
from rocketmq_aio.testing.containers import LABEL

STARTS_AND_HANGS: Final = """
import sys, time
from rocketmq_aio.testing import Cluster
cluster = Cluster.start(sys.argv[1], backend="containers")
print(cluster._backend._label, flush=True)
time.sleep(600)
"""


@pytest.fixture
def broker(rocketmq_cluster: Cluster) -> Broker:
    return rocketmq_cluster.brokers[0]


@pytest.fixture
def engine() -> Iterator[docker.DockerClient]:
    with closing(docker.from_env()) as client:
        yield client


def test_a_topic_can_be_found_through_a_published_port(
    rocketmq_cluster: Cluster, rocketmq_topic: str, broker: Broker
) -> None:
    found = probe.masters(rocketmq_cluster.namesrv, rocketmq_topic)

    assert found == {"broker-a": broker.address}


def test_ports_are_published_on_loopback_only(
    engine: docker.DockerClient, rocketmq_cluster: Cluster
) -> None:
    published = [
        place["HostIp"]
        for container in engine.containers.list(filters={"label": LABEL})
        for places in container.attrs["NetworkSettings"]["Ports"].values()
        for place in places or ()
    ]

    assert published == ["127.0.0.1", "127.0.0.1"]


def test_a_paused_broker_accepts_connections_but_does_not_respond(broker: Broker) -> None:
    broker.pause()
    with pytest.raises(TimeoutError):
        probe.request(broker.address, RequestCode.GET_BROKER_RUNTIME_INFO, timeout_seconds=0.5)

    broker.resume()

    probe.ask(broker.address, RequestCode.GET_BROKER_RUNTIME_INFO)


def test_topics_and_the_address_survive_a_kill(rocketmq_cluster: Cluster, broker: Broker) -> None:
    rocketmq_cluster.create_topic("survivor", queues=2)

    broker.kill()
    assert broker.pid is None
    broker.start()

    assert probe.masters(rocketmq_cluster.namesrv, "survivor") == {"broker-a": broker.address}


def test_a_paused_broker_can_be_killed(broker: Broker) -> None:
    broker.pause()

    broker.kill()

    assert broker.pid is None
    broker.start()


def test_a_broker_stops_gracefully_and_restarts(broker: Broker) -> None:
    before = broker.pid

    broker.restart()

    assert broker.pid not in {None, before}


def test_mqadmin_lists_the_cluster(rocketmq_cluster: Cluster, broker: Broker) -> None:
    assert broker.address in rocketmq_cluster.mqadmin("clusterList")


def test_two_brokers_find_the_same_name_server(rocketmq_version: str) -> None:
    with Cluster.start(rocketmq_version, backend="containers", brokers=2) as cluster:
        found = probe.cluster_masters(cluster.namesrv)

    assert set(found) == {"broker-a", "broker-b"}


def test_containers_do_not_outlive_a_killed_owner(
    engine: docker.DockerClient, rocketmq_version: str, rocketmq_cluster: Cluster
) -> None:
    before = list_all(engine)
    command = [sys.executable, "-c", STARTS_AND_HANGS, rocketmq_version]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline()
        assert list_all(engine) > before
        owner.send_signal(signal.SIGKILL)

    def check_gone() -> None:
        if list_all(engine) != before:
            raise probe.ProbeError("containers or networks are left")

    probe.wait_until(check_gone, seconds=60, what="not cleaned up")


def list_all(engine: docker.DockerClient) -> set[str]:
    """Return the ids of our containers and networks."""
    chosen: dict[str, str | list[str] | bool] = {"label": LABEL}
    containers = engine.containers.list(all=True, filters=chosen)
    return {str(found.id) for found in (*containers, *engine.networks.list(filters=chosen))}
