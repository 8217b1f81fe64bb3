"""Administration of brokers: cluster and runtime information."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from rocketmq_aio.protocol.bodies import Body, BrokerData
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.header import RequestHeader


class GetClusterInfo(RequestHeader, frozen=True, kw_only=True):
    """To a name server: list all brokers."""

    code: ClassVar[int] = RequestCode.GET_BROKER_CLUSTER_INFO


class ClusterInfoBody(Body, frozen=True):
    """Brokers by name, and names of brokers by cluster."""

    broker_addr_table: dict[str, BrokerData] = msgspec.field(default_factory=dict)
    cluster_addr_table: dict[str, list[str]] = msgspec.field(default_factory=dict)


class GetBrokerRuntime(RequestHeader, frozen=True, kw_only=True):
    """Get the runtime information of a broker."""

    code: ClassVar[int] = RequestCode.GET_BROKER_RUNTIME_INFO


class KVTable(Body, frozen=True):
    """Values by name; the names differ between releases."""

    table: dict[str, str] = msgspec.field(default_factory=dict)
