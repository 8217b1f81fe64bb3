"""Broker configuration files."""

from __future__ import annotations

import pytest

from rocketmq_aio.testing.conf import broker_conf, properties_text
from rocketmq_aio.testing.errors import ClusterError


def test_a_broker_advertises_an_address_of_this_machine() -> None:
    properties = broker_conf("broker-b", 20911, "127.0.0.1:20876;127.0.0.1:20877", {})

    assert properties["brokerName"] == "broker-b"
    assert properties["brokerIP1"] == "127.0.0.1"
    assert properties["listenPort"] == "20911"
    assert properties["namesrvAddr"] == "127.0.0.1:20876;127.0.0.1:20877"


def test_properties_of_the_caller_override_the_defaults() -> None:
    properties = broker_conf("broker-a", 20911, "", {"autoCreateTopicEnable": "false"})

    assert properties["autoCreateTopicEnable"] == "false"


@pytest.mark.parametrize("name", ["listenPort", "brokerName", "brokerIP1", "namesrvAddr"])
def test_required_properties_cannot_be_overridden(name: str) -> None:
    with pytest.raises(ClusterError, match=name):
        broker_conf("broker-a", 20911, "", {name: "1"})


@pytest.mark.parametrize(("name", "value"), [("a=b", "1"), ("flushDiskType", "A\nbrokerId=1")])
def test_a_property_value_cannot_contain_another_property(name: str, value: str) -> None:
    with pytest.raises(ClusterError, match="not a broker property"):
        broker_conf("broker-a", 20911, "", {name: value})


def test_backslashes_are_escaped() -> None:
    assert properties_text({"a": "b", "storePathRootDir": r"C:\store"}) == (
        "a=b\nstorePathRootDir=C:\\\\store\n"
    )
