"""Clients whose way to the broker leads through a proxy."""

from __future__ import annotations

from typing import Final

from rocketmq_aio.config import ClientConfig
from tests.fakes.cluster import FakeCluster
from tests.fakes.proxy import FaultProxy

QUICK: Final = 0.3  # a request timeout that a test can wait for


def through(proxy: FaultProxy, cluster: FakeCluster, timeout: float = 3.0) -> ClientConfig:
    return ClientConfig(
        namesrv=cluster.namesrv,
        address_mapper=proxy.map_address,
        request_timeout_seconds=timeout,
        connect_timeout_seconds=timeout,
    )
