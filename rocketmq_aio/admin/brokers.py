"""Broker administration."""

from __future__ import annotations

from collections.abc import Iterable

from rocketmq_aio.admin.results import BrokerRuntime, ClusterInfo
from rocketmq_aio.admin.servers import Servers
from rocketmq_aio.protocol.requests.admin import GetBrokerRuntime, KVTable


class BrokerAdmin:
    """Describes and maintains brokers: ``admin.brokers``."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    async def cluster(self) -> ClusterInfo:
        """Return all brokers registered with any name server, replicas included.

        :raises NameServerUnavailableError: no name server answered
        :raises NotSupportedError: the servers are proxies, which do not support this
        """
        return await self._servers.cluster_info()

    async def stats(
        self, *, cluster: str | None = None, brokers: Iterable[str] | None = None
    ) -> list[BrokerRuntime]:
        """Return the runtime statistics of masters: version, rates, disks, request queues.

        :raises ConfigError: there is no such cluster or broker
        """
        masters = await self._servers.masters(cluster, brokers)
        tables = await self._servers.read_each(
            "reading statistics", masters, GetBrokerRuntime(), KVTable
        )
        return [
            BrokerRuntime(broker_name=name, address=masters[name] or "", stats=each.table)
            for name, each in tables.items()
        ]
