"""Backend `embedded` of `Cluster`: the calls of a test, without its processes."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.testing import Cluster, ClusterError, NotSupportedError, probe

THREAD = "rocketmq-embedded"


def properties(**given: object) -> dict[str, Any]:
    return {"broker_properties": given}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster.start(backend="embedded", brokers=2) as cluster:
        yield cluster


def test_topics_are_created_on_all_brokers_or_on_some(cluster: Cluster) -> None:
    first, second = cluster.brokers

    cluster.create_topic("everywhere", queues=3)
    cluster.create_topic("somewhere", queues=1, brokers=[second])

    known = {broker.name: broker.address for broker in (first, second)}
    assert probe.masters(cluster.namesrv, "everywhere") == known
    assert probe.masters(cluster.namesrv, "somewhere") == {second.name: second.address}


def test_a_killed_broker_refuses_connections_until_it_is_started(cluster: Cluster) -> None:
    broker = cluster.brokers[0]
    broker.kill()

    with pytest.raises(OSError, match="refused"):
        probe.ask(broker.address, RequestCode.GET_BROKER_RUNTIME_INFO)
    with pytest.raises(ClusterError, match="does not run"):
        cluster.check_running()
    broker.start()
    cluster.check_running()
    probe.ask(broker.address, RequestCode.GET_BROKER_RUNTIME_INFO)


def test_a_running_broker_cannot_be_started(cluster: Cluster) -> None:
    with pytest.raises(ClusterError, match="is running already"):
        cluster.brokers[0].start()


def test_closing_ends_the_thread_and_can_be_repeated() -> None:
    before = threading.active_count()
    cluster = Cluster.start(backend="embedded")
    names = [each.name for each in threading.enumerate()]
    assert THREAD in names

    cluster.close()
    cluster.close()

    assert threading.active_count() == before


def test_logs_are_not_kept_because_there_are_none(cluster: Cluster) -> None:
    assert cluster.save_logs() is None


def test_slaves_are_nodes_of_their_own() -> None:
    with Cluster.start(backend="embedded", brokers=2, slaves=2) as cluster:
        first, second = cluster.brokers
        cluster.create_topic("orders", queues=2)
        first.slaves[0].wait_copied("orders")
        first.kill()

        known = probe.members(cluster.namesrv, first.name)

        assert known == {slave.broker_id: slave.address for slave in first.slaves}
        assert [slave.name for slave in second.slaves] == ["broker-b-slave-1", "broker-b-slave-2"]
        first.start()
        first.slaves[1].kill()
        with pytest.raises(ClusterError, match="broker-a-slave-2"):
            cluster.check_running()


def test_brokers_are_of_several_versions() -> None:
    versions = ["4.9.7", "5.5.0"]
    with Cluster.start(backend="embedded", broker_versions=versions, slaves=1) as cluster:
        assert [broker.version for broker in cluster.brokers] == versions
        assert [broker.slaves[0].version for broker in cluster.brokers] == versions


def test_the_version_of_a_server_cannot_change(cluster: Cluster) -> None:
    broker = cluster.brokers[0]
    with pytest.raises(NotSupportedError, match="cannot change the version"):
        broker.restart(version="4.9.7")

    broker.start(version="5.5.0")
    assert broker.version == "5.5.0"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"version": "5.3.1"}, "the embedded backend has 4.9.7 and 5.5.0, not '5.3.1'"),
        (properties(storePathRootDir="/tmp"), "the embedded backend cannot set storePathRootDir"),
        ({"slaves": 1, "sync_replication": True}, "the embedded backend has no sync_replication"),
        ({"slaves": 1, "controller": True}, "the embedded backend has no elections"),
        ({"slaves": 1, "controllers": 3}, "the embedded backend has no elections"),
        ({"slaves": 2, "dledger": True}, "the embedded backend has no elections"),
        ({"proxies": 1}, "proxies need the backend 'jvm', not 'embedded'"),
        ({"version": "4.9.7", "controller": True}, "RocketMQ before 5.0 has no controllers"),
    ],
)
def test_what_the_embedded_cluster_does_not_have_is_named(
    settings: dict[str, Any], reason: str
) -> None:
    with pytest.raises(NotSupportedError, match=f"^{reason}"):
        Cluster.start(backend="embedded", **settings)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (properties(messageDelayLevel="abc"), "messageDelayLevel='abc' cannot be"),
        (properties(transactionTimeOut="6s"), "transactionTimeOut='6s' cannot be"),
        (properties(autoCreateTopicEnable=False), "Enable=False: expected text"),
        ({"namesrvs": 0}, "namesrvs=0: at least 1"),
        ({"slaves": -1}, "slaves=-1: at least 0"),
        ({"proxies": 27}, "proxies=27: at least 0, at most 26"),
        ({"slaves": 1, "dledger": True}, "three or more"),
    ],
)
def test_settings_that_no_cluster_can_have_are_refused(
    settings: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ClusterError, match=reason):
        Cluster.start(backend="embedded", **settings)


def test_flags_of_brokers_are_read_in_any_case() -> None:
    off = {"autoCreateTopicEnable": "FALSE", "autoCreateSubscriptionGroup": "True"}
    with Cluster.start(backend="embedded", broker_properties=off) as cluster:
        broker = cluster._require_embedded("a state").broker

    assert (broker.state.auto_create_topics, broker.state.auto_create_groups) == (False, True)


def test_how_brokers_record_transactions_has_no_effect() -> None:
    """Load tests set it, because the settings of real test brokers are for few transactions."""
    given = {"transactionOpMsgMaxSize": "4096", "transactionOpBatchInterval": "3000"}
    with Cluster.start(backend="embedded", broker_properties=given) as cluster:
        broker = cluster._require_embedded("a state").broker

    assert given.keys().isdisjoint(broker.state.settings)


def test_a_property_may_repeat_what_the_embedded_broker_does() -> None:
    with Cluster.start(backend="embedded", broker_properties={"traceTopicEnable": "true"}):
        pass

    with pytest.raises(NotSupportedError, match="cannot set traceTopicEnable=false"):
        Cluster.start(backend="embedded", broker_properties={"traceTopicEnable": "false"})


def test_a_stopped_broker_cannot_be_paused(cluster: Cluster) -> None:
    broker = cluster.brokers[0]
    broker.stop()
    with pytest.raises(ClusterError, match="is not running"):
        broker.pause()

    broker.start()


def test_a_server_of_a_closed_cluster_cannot_start() -> None:
    with Cluster.start(backend="embedded") as cluster:
        broker = cluster.brokers[0]

    with pytest.raises(ClusterError, match="its cluster is closed"):
        broker.start()


def test_a_server_of_a_closed_cluster_is_stopped_without_effect() -> None:
    with Cluster.start(backend="embedded") as cluster:
        pass

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cluster.brokers[0].stop()
        cluster.brokers[0].kill()
        gc.collect()
    assert caught == []


def test_errors_of_handlers_at_all_name_servers_are_raised_at_the_end() -> None:
    def broken(_command: object, _connection: object) -> None:
        raise LookupError("a mistake in a test")

    cluster = Cluster.start(backend="embedded", namesrvs=2)
    cluster.faults.handle("route", broken)
    with pytest.raises(ConnectionError):
        probe.masters(cluster.namesrvs[1].address, "orders")

    with pytest.raises(ExceptionGroup, match="a handler failed"):
        cluster.close()


def test_faults_apply_to_all_name_servers() -> None:
    with Cluster.start(backend="embedded", namesrvs=2) as cluster:
        cluster.faults.refuse("route", 1, "lost", times=None, broker="namesrv")
        for server in cluster.namesrvs:
            with pytest.raises(ClusterError, match="lost"):
                probe.masters(server.address, "orders")
