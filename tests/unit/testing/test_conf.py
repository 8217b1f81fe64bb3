"""Broker configuration files."""

from __future__ import annotations

import pytest

from rocketmq_aio.testing.conf import broker_conf, controller_conf, properties_text, proxy_conf
from rocketmq_aio.testing.errors import ClusterError
from rocketmq_aio.testing.server import BrokerSpec


def spec(**properties: str) -> BrokerSpec:
    return BrokerSpec("broker-b", "5.5.0", properties)


def test_a_broker_advertises_an_address_of_this_machine() -> None:
    properties = broker_conf(spec(), 20911, "127.0.0.1:20876;127.0.0.1:20877")

    assert properties["brokerName"] == "broker-b"
    assert properties["brokerIP1"] == properties["brokerIP2"] == "127.0.0.1"
    assert (properties["listenPort"], properties["haListenPort"]) == ("20911", "20912")
    assert properties["namesrvAddr"] == "127.0.0.1:20876;127.0.0.1:20877"


def test_a_broker_is_a_master_unless_it_has_another_id() -> None:
    master = broker_conf(spec(), 20911, "")
    second = spec()._replace(broker_id=2)
    slave = broker_conf(second, 20911, "")

    assert (spec().name, second.name) == ("broker-b", "broker-b-slave-2")
    assert (master["brokerId"], master["brokerRole"]) == ("0", "ASYNC_MASTER")
    assert (slave["brokerId"], slave["brokerRole"]) == ("2", "SLAVE")
    assert slave["brokerName"] == master["brokerName"]


def test_a_master_with_synchronous_replication_waits_for_one_slave() -> None:
    wanted = spec()._replace(sync_replication=True)

    master = broker_conf(wanted, 20911, "")
    slave = broker_conf(wanted._replace(broker_id=1), 20911, "")

    assert (master["brokerRole"], master["inSyncReplicas"]) == ("SYNC_MASTER", "2")
    assert slave["brokerRole"] == "SLAVE"


@pytest.mark.parametrize("sync", [False, True])
def test_a_broker_with_a_controller_has_no_role(sync: bool) -> None:
    wanted = spec()._replace(controlled=True, sync_replication=sync, broker_id=1)

    properties = broker_conf(wanted, 20911, "", "127.0.0.1:20900")

    assert properties.keys().isdisjoint({"brokerId", "brokerRole", "inSyncReplicas"})
    assert properties["enableControllerMode"] == "true"
    assert properties["controllerAddr"] == "127.0.0.1:20900"
    assert properties["allAckInSyncStateSet"] == str(sync).lower()
    assert wanted.name == "broker-b-replica-1"


def test_replicas_that_elect_their_master_have_no_role_and_know_each_other() -> None:
    wanted = spec()._replace(dledger=True, broker_id=1)

    properties = broker_conf(wanted, 20911, "", dledger_ports=[20_001, 20_005, 20_009])

    assert properties.keys().isdisjoint({"brokerId", "brokerRole", "inSyncReplicas"})
    assert properties["dLegerGroup"] == "broker-b"
    assert properties["dLegerSelfId"] == "n1"
    assert properties["dLegerPeers"] == "n0-127.0.0.1:20001;n1-127.0.0.1:20005;n2-127.0.0.1:20009"
    assert wanted.name == "broker-b-replica-1"


def test_controllers_of_a_group_know_each_other() -> None:
    first, second = (controller_conf([20_001, 20_005], own, f"store-{own}") for own in (0, 1))

    assert first["controllerDLegerPeers"] == "n0-127.0.0.1:20001;n1-127.0.0.1:20005"
    assert (first["controllerDLegerSelfId"], second["controllerDLegerSelfId"]) == ("n0", "n1")
    assert second["controllerStorePath"] == "store-1"
    own = {"controllerDLegerSelfId", "controllerStorePath"}
    assert {name for name in first if first[name] != second[name]} == own


def test_properties_of_the_caller_override_the_defaults() -> None:
    properties = broker_conf(spec(autoCreateTopicEnable="false"), 20911, "")

    assert properties["autoCreateTopicEnable"] == "false"


@pytest.mark.parametrize(
    "name", ["listenPort", "brokerName", "brokerId", "brokerRole", "brokerIP1", "namesrvAddr"]
)
def test_required_properties_cannot_be_overridden(name: str) -> None:
    with pytest.raises(ClusterError, match=name):
        broker_conf(spec(**{name: "1"}), 20911, "")


@pytest.mark.parametrize(("name", "value"), [("a=b", "1"), ("flushDiskType", "A\nbrokerId=1")])
def test_a_property_value_cannot_contain_another_property(name: str, value: str) -> None:
    with pytest.raises(ClusterError, match="not a broker property"):
        broker_conf(spec(**{name: value}), 20911, "")


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("b", "b"),
        (r"C:\store", r"C:\\store"),
        ("/tmp/Jürgen/😀", r"/tmp/J\u00fcrgen/\ud83d\ude00"),  # Java reads Latin-1
    ],
)
def test_property_values_are_escaped(value: str, written: str) -> None:
    assert properties_text({"a": value}) == f"a={written}\n"


def test_a_proxy_gives_out_its_own_address_and_serves_grpc_on_the_next_port() -> None:
    settings = proxy_conf(20_000, "127.0.0.1:9876;127.0.0.1:9877")

    assert settings["proxyMode"] == "cluster"
    assert settings["namesrvAddr"] == "127.0.0.1:9876;127.0.0.1:9877"
    assert settings["localServeAddr"] == "127.0.0.1"
    assert (settings["remotingListenPort"], settings["grpcServerPort"]) == (20_000, 20_001)
