"""AdminClient: everything that administrators do, in one object."""

from __future__ import annotations

from collections.abc import Iterable

from rocketmq_aio.admin.messages import Messages
from rocketmq_aio.admin.offsets import Offsets
from rocketmq_aio.admin.results import BrokerRuntime
from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.instance.instance import MQClientInstance
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.requests.admin_cluster import GetBrokerRuntime, KVTable


class AdminClient(Offsets, Messages):
    """Looks after topics, groups, offsets and brokers, and finds messages::

        async with AdminClient(namesrv="127.0.0.1:9876") as admin:
            await admin.create_topic("orders", queues=16)
            print((await admin.group_progress("billing")).lag)

    What is made may be made again, and what is deleted deleted again.  Whatever several servers
    are asked for happens on all of them or is told by `AdminError`, server by server.  An account
    that may not do it gets `AuthError` or `PermissionDeniedError`.  Everything may be called from
    several tasks at once.

    :param namesrv: where to connect; default ``ROCKETMQ_NAMESRV``, then ``NAMESRV_ADDR``
    :param client: a `ClientConfig` (TLS, credentials, ...) or a running `MQClientInstance` to share
    """

    def __init__(
        self,
        *,
        namesrv: str | None = None,
        client: MQClientInstance | ClientConfig | None = None,
    ) -> None:
        super().__init__(namesrv=namesrv, client=client)

    async def broker_stats(
        self, *, cluster: str | None = None, brokers: Iterable[str] | None = None
    ) -> list[BrokerRuntime]:
        """Return what masters say of themselves: version, rates, disks, queues of requests.

        :raises ConfigError: there is no such cluster or broker
        :raises AdminError: some brokers could not be asked
        """

        async def stats(name: str, address: str) -> BrokerRuntime:
            command = await self._ask(address, GetBrokerRuntime())
            table = read_body(command.body, KVTable).table
            return BrokerRuntime(broker_name=name, address=address, stats=table)

        masters = await self._masters(cluster, brokers)
        return list((await self._on_each("asking for statistics", masters, stats)).values())

    async def _open(self) -> None:
        """Nothing to join: brokers hear of it when it asks."""

    async def _shut(self) -> None:
        """Nothing to leave."""
