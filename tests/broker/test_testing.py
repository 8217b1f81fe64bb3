"""`rocketmq_aio.testing` on real servers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.testing import Broker, Cluster, ClusterError, StartError, probe
from rocketmq_aio.testing.jvm import JVMServer

SEND_MESSAGE: Final = 10
GET_MAX_OFFSET: Final = 30

STARTS_AND_HANGS: Final = """
import sys, time
from rocketmq_aio.testing import Cluster
cluster = Cluster.start(sys.argv[1])
print(*(node.pid for node in (*cluster.namesrvs, *cluster.brokers)), flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def cluster(fresh_cluster: Callable[..., Cluster]) -> Cluster:
    """A cluster that tests kill, freeze and restart; each leaves it running."""
    return fresh_cluster(namesrvs=2)


@pytest.fixture
def broker(cluster: Cluster) -> Broker:
    return cluster.brokers[0]


@pytest.fixture
def orphans(rocketmq_version: str) -> list[Path]:
    """The processes of a ready cluster whose owner was killed with SIGKILL."""
    command = [sys.executable, "-c", STARTS_AND_HANGS, rocketmq_version]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pids = owner.stdout.readline().split()
        owner.send_signal(signal.SIGKILL)
    return [Path("/proc", pid) for pid in pids]


def test_the_topic_fixture_creates_a_route(rocketmq_cluster: Cluster, rocketmq_topic: str) -> None:
    found = probe.masters(rocketmq_cluster.namesrvs[0].address, rocketmq_topic)

    assert found == {broker.name: broker.address for broker in rocketmq_cluster.brokers}


def test_a_deleted_topic_is_gone_from_the_name_server(rocketmq_cluster: Cluster) -> None:
    rocketmq_cluster.create_topic("deleted", queues=1)

    rocketmq_cluster.delete_topic("deleted")

    assert probe.masters(rocketmq_cluster.namesrvs[0].address, "deleted") == {}


def test_every_name_server_knows_the_broker(cluster: Cluster, broker: Broker) -> None:
    known = [probe.cluster_masters(server.address) for server in cluster.namesrvs]

    assert known == [{broker.name: broker.address}] * 2


@pytest.mark.needs_real_broker("it kills processes of servers")
def test_stored_messages_survive_a_kill(cluster: Cluster, broker: Broker) -> None:
    cluster.create_topic("survivor", queues=1)
    send_one(broker, "survivor")

    broker.kill()
    assert broker.pid is None
    broker.start()

    assert probe.masters(cluster.namesrvs[0].address, "survivor") == {"broker-a": broker.address}
    probe.wait_until(lambda: check_stored(broker, "survivor"), seconds=60, what="not stored")


@pytest.mark.needs_real_broker("it kills processes of servers")
def test_a_broker_killed_while_it_created_a_file_starts_again(
    cluster: Cluster, broker: Broker
) -> None:
    broker.kill()
    server = broker._server
    assert isinstance(server, JVMServer)
    folder = server._home / "store" / "consumequeue" / "survivor" / "7"
    folder.mkdir(parents=True)
    (folder / f"{0:020}").touch()
    broker.start()

    probe.ask(broker.address, RequestCode.GET_BROKER_RUNTIME_INFO)


@pytest.mark.needs_real_broker("it kills processes of servers")
def test_a_broker_stops_gracefully_and_restarts(cluster: Cluster, broker: Broker) -> None:
    before = broker.pid

    broker.restart()

    assert broker.pid not in {None, before}
    probe.ask(broker.address, RequestCode.GET_BROKER_RUNTIME_INFO)


def test_a_paused_broker_accepts_connections_but_does_not_respond(broker: Broker) -> None:
    broker.pause()
    with pytest.raises(TimeoutError):
        probe.request(broker.address, RequestCode.GET_BROKER_RUNTIME_INFO, timeout_seconds=0.5)

    broker.resume()

    probe.ask(broker.address, RequestCode.GET_BROKER_RUNTIME_INFO)


def test_brokers_register_again_with_a_restarted_name_server(
    cluster: Cluster, broker: Broker
) -> None:
    server = cluster.namesrvs[0]

    server.kill()
    server.start()
    cluster.wait_ready()

    assert probe.cluster_masters(server.address) == {broker.name: broker.address}


def test_mqadmin_lists_the_cluster(cluster: Cluster, broker: Broker) -> None:
    printed = cluster.mqadmin("clusterList")

    assert broker.address in printed


@pytest.mark.needs_real_broker("the embedded broker writes no logs")
def test_server_logs_can_be_kept(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ROCKETMQ_AIO_LOGS", str(tmp_path))

    folder = cluster.save_logs()

    assert folder is not None
    assert folder.parent == tmp_path
    assert {path.name for path in folder.iterdir()} == {"namesrv-a", "namesrv-b", "broker-a"}
    assert any(path.stat().st_size for path in folder.rglob("*.log"))


@pytest.mark.needs_real_broker("the embedded broker writes no logs")
def test_a_broker_that_fails_to_start_leaves_only_its_logs(
    fresh_cluster: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ROCKETMQ_AIO_LOGS", str(tmp_path / "kept"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    with pytest.raises(StartError, match="broker-a") as raised:
        fresh_cluster(broker_properties={"storePathRootDir": "/proc/none"})

    assert raised.value.logs is not None
    assert (raised.value.logs / "broker-a").is_dir()
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


@pytest.mark.needs_real_broker("it kills processes of servers")
def test_servers_do_not_outlive_a_killed_owner(orphans: list[Path]) -> None:
    assert len(orphans) == 2

    probe.wait_until(lambda: check_gone(orphans), seconds=60, what="servers still run")


def send_one(broker: Broker, topic: str) -> None:
    fields = {
        "producerGroup": "p",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 1,
        "queueId": 0,
        "sysFlag": 0,
        "bornTimestamp": 0,
        "flag": 0,
        "properties": "",
        "reconsumeTimes": 0,
        "unitMode": "false",
    }
    probe.ask(broker.address, SEND_MESSAGE, fields, b"survivor")


def check_stored(broker: Broker, topic: str) -> None:
    fields = {"topic": topic, "queueId": 0}
    reply = probe.request(broker.address, GET_MAX_OFFSET, fields)
    if reply.ext_fields["offset"] != "1":
        raise probe.ProbeError(str(reply.ext_fields))


def check_gone(processes: list[Path]) -> None:
    if left := [process for process in processes if process.exists()]:
        raise probe.ProbeError(str(left))


@pytest.mark.needs_real_broker("it kills processes of servers")
def test_an_exited_server_is_reported_with_its_output(cluster: Cluster) -> None:
    cluster.check_running()
    broker = cluster.brokers[0]
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGKILL)
    probe.wait_until(lambda: _is_gone(broker), seconds=60, what="still running")
    with pytest.raises(ClusterError, match=r"broker-a at .* does not run"):
        cluster.check_running()

    broker.start()
    cluster.check_running()


def _is_gone(broker: Broker) -> None:
    if broker.pid is not None:
        raise probe.ProbeError(f"{broker.name} is still there")
