"""Configuration of clients that connect to the broker through a proxy."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.instance.client_instance import MQClientInstance
from tests.fakes.cluster import FakeCluster
from tests.fakes.proxy import FaultProxy

QUICK: Final = 0.3  # a short request timeout


def shorten_timeout(client: MQClientInstance) -> None:
    """Shorten the request timeout of a running client."""
    remoting = client.remoting
    remoting._config = replace(remoting._config, request_timeout_seconds=QUICK)


def proxied_config(proxy: FaultProxy, cluster: FakeCluster) -> ClientConfig:
    return ClientConfig(
        namesrv=cluster.namesrv,
        address_mapper=proxy.map_address,
        request_timeout_seconds=15.0,
        connect_timeout_seconds=15.0,
    )
