"""Clients whose way to the broker leads through a proxy."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.instance.instance import MQClientInstance
from tests.fakes.cluster import FakeCluster
from tests.fakes.proxy import FaultProxy

QUICK: Final = 0.3  # a request timeout that a test can wait for


def hasten(client: MQClientInstance) -> None:
    """From now on requests that are not answered end soon: what had to be done first is done."""
    remoting = client.remoting
    remoting._config = replace(remoting._config, request_timeout_seconds=QUICK)


def through(proxy: FaultProxy, cluster: FakeCluster, timeout: float = 15.0) -> ClientConfig:
    return ClientConfig(
        namesrv=cluster.namesrv,
        address_mapper=proxy.map_address,
        request_timeout_seconds=timeout,
        connect_timeout_seconds=timeout,
    )
