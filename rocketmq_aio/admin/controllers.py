"""Controller administration: metadata, settings, elections (5.0)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from time import time_ns

import msgspec

from rocketmq_aio.admin.server_results import (
    ControllerMetadata,
    ElectedMaster,
    InSyncSet,
    write_properties,
)
from rocketmq_aio.admin.servers import Servers
from rocketmq_aio.config.arguments import checked_arguments
from rocketmq_aio.errors import ConfigError, NotConnectedError
from rocketmq_aio.protocol.header import read_header
from rocketmq_aio.protocol.requests import operations


class _InSyncSets(msgspec.Struct, rename="camel"):
    replicas_info_table: dict[str, InSyncSet] = {}


@checked_arguments
class ControllerAdmin:
    """Describes controllers and elects masters: ``admin.controllers``.

    Name servers do not know controllers: every method takes the address of one, and finds the
    leader by it.
    """

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    async def metadata(self, address: str) -> ControllerMetadata:
        """Return the controllers of a group and their leader, as the one at *address* knows."""
        command = await self._servers.request(address, operations.GET_CONTROLLER_METADATA)
        return read_header(command, ControllerMetadata)

    async def config(self, addresses: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return the settings of each controller."""
        targets = {address: address for address in addresses}
        return await self._servers.read_settings(targets, operations.GET_CONTROLLER_CONFIG)

    async def update_config(self, addresses: Iterable[str], settings: Mapping[str, str]) -> None:
        """Change settings of running controllers.

        :raises ConfigError: a controller does not have one of the settings; nothing was changed
        """
        await self._servers.change_settings(
            {address: address for address in addresses},
            settings,
            write_properties(settings),
            read=operations.GET_CONTROLLER_CONFIG,
            change=operations.UPDATE_CONTROLLER_CONFIG,
        )

    async def in_sync_sets(self, address: str, brokers: Iterable[str]) -> dict[str, InSyncSet]:
        """Return master and replicas of *brokers*, by name.

        :raises ConfigError: the controller does not know one of them
        """
        header, names = operations.GetInSyncSets(invoke_time=_now()), list(brokers)
        leader, body = await self._leader(address), msgspec.json.encode(names)
        table = await self._servers.read(leader, header, _InSyncSets, body)
        found = table.replicas_info_table
        if missing := sorted({*names} - found.keys()):
            reason = f"the controller does not know {missing}; it knows {sorted(found)} of these"
            raise ConfigError("brokers", names, reason)
        return found

    async def elect_master(
        self, address: str, cluster: str, broker: str, broker_id: int
    ) -> ElectedMaster:
        """Make the replica *broker_id* the master of *broker*.

        :raises BrokerError: it is the master already, is not alive, or is not in sync
        """
        header = operations.ElectMaster(
            cluster_name=cluster,
            broker_name=broker,
            broker_id=broker_id,
            designate_elect=True,
            invoke_time=_now(),
        )
        command = await self._servers.request(await self._leader(address), header)
        return read_header(command, ElectedMaster)

    async def clean(
        self,
        address: str,
        cluster: str,
        broker: str,
        *,
        broker_ids: Iterable[int] = (),
        living: bool = False,
    ) -> None:
        """Forget replicas of *broker* that are not alive.

        :param broker_ids: the replicas; default all
        :param living: also those that are alive
        :raises BrokerError: one is alive, or the broker is not known
        """
        header = operations.CleanBrokerData(
            cluster_name=cluster,
            broker_name=broker,
            broker_controller_ids_to_clean=";".join(map(str, broker_ids)) or None,
            is_clean_living_broker=living,
            invoke_time=_now(),
        )
        await self._servers.request(await self._leader(address), header)

    async def _leader(self, address: str) -> str:
        leader = (await self.metadata(address)).leader_address
        if not leader:
            raise NotConnectedError(address, "this controller knows no leader")
        return leader


def _now() -> int:
    return time_ns() // 1_000_000
