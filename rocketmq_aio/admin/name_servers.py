"""Name server administration: settings, stored values, write permission of brokers."""

from __future__ import annotations

from collections.abc import Mapping

from rocketmq_aio.admin.server_results import read_properties, write_properties
from rocketmq_aio.admin.servers import Servers, check_settings_known
from rocketmq_aio.config.arguments import checked_arguments
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.protocol.codes import ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.header import Header, read_header
from rocketmq_aio.protocol.requests import operations
from rocketmq_aio.protocol.requests.admin import (
    DeleteKVConfig,
    GetKVConfig,
    GetKVConfigResponse,
    KVTable,
    PutKVConfig,
)

FOUND_OR_NOT = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)


class _ChangedTopics(Header, frozen=True):
    wipe_topic_count: int = 0
    add_topic_count: int = 0


@checked_arguments
class NameServerAdmin:
    """Maintains the name servers of the client: ``admin.name_servers``.

    Name servers do not replicate to each other: each method goes to all of them, and returns
    results by address.
    """

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    async def config(self) -> dict[str, dict[str, str]]:
        """Return the settings of each name server."""
        header = operations.GET_NAME_SERVER_CONFIG
        responses = await self._servers.on_name_servers("reading settings", header)
        return {address: read_properties(each.body) for address, each in responses.items()}

    async def update_config(self, settings: Mapping[str, str]) -> None:
        """Change settings of running name servers, in memory and in their files.

        :raises ConfigError: a server does not have one of the settings; nothing was changed
        :raises BrokerError: a setting cannot be changed while the name server runs
        """
        if not settings:
            raise ConfigError("settings", settings, "expected settings by name")
        header, body = operations.UPDATE_NAME_SERVER_CONFIG, write_properties(settings)
        await check_settings_known(settings, self.config())
        await self._servers.on_name_servers("changing settings", header, body=body)

    async def values(self, namespace: str) -> dict[str, dict[str, str]]:
        """Return all values that are stored in *namespace*."""
        header = operations.ListKVConfig(namespace=namespace)
        responses = await self._ask(f"listing values of {namespace}", header)
        return {
            address: read_body(each.body, KVTable).table if each.body else {}
            for address, each in responses.items()
        }

    async def value(self, namespace: str, key: str) -> dict[str, str | None]:
        """Return the value of *key* in *namespace*, None where it is not stored."""
        header = GetKVConfig(namespace=namespace, key=key)
        responses = await self._ask(f"reading value {key} of {namespace}", header)
        return {
            address: read_header(each, GetKVConfigResponse).value
            for address, each in responses.items()
        }

    async def put_value(self, namespace: str, key: str, value: str) -> None:
        """Store a value; they are kept in the file ``kvConfig.json`` of each name server."""
        header = PutKVConfig(namespace=namespace, key=key, value=value)
        await self._servers.on_name_servers(f"storing value {key} of {namespace}", header)

    async def delete_value(self, namespace: str, key: str) -> None:
        """Delete a value; it may be missing."""
        header = DeleteKVConfig(namespace=namespace, key=key)
        await self._servers.on_name_servers(f"deleting value {key} of {namespace}", header)

    async def wipe_write_permission(self, broker: str) -> dict[str, int]:
        """Take the write permission from all topics of *broker* in the routes.

        Producers stop sending to it, consumers go on: before its shutdown, for example.  It lasts
        until `add_write_permission`, or until the broker changes its topics.

        :return: the number of changed topics by name server; 0 if it does not know the broker
        :raises ConfigError: none of them knows the broker
        """
        header = operations.WipeWritePermission(broker_name=broker)
        return await self._change_permission(f"wiping permissions of {broker}", header)

    async def add_write_permission(self, broker: str) -> dict[str, int]:
        """Give the write permission back to all topics of *broker*; see above."""
        header = operations.AddWritePermission(broker_name=broker)
        return await self._change_permission(f"adding permissions of {broker}", header)

    async def _change_permission(
        self, action: str, header: operations.WipeWritePermission | operations.AddWritePermission
    ) -> dict[str, int]:
        responses = await self._servers.on_name_servers(action, header)
        counts = {address: _count(each) for address, each in responses.items()}
        if not any(counts.values()):
            known = sorted(
                each.broker_name for each in (await self._servers.cluster_info()).brokers
            )
            if header.broker_name not in known:
                raise ConfigError("broker", header.broker_name, f"the name server knows {known}")
        return counts

    async def _ask(
        self, action: str, header: operations.ListKVConfig | GetKVConfig
    ) -> dict[str, Command]:
        targets = {each: each for each in self._servers.instance.name_servers.addresses}
        return await self._servers.send_each(action, targets, header, accept=FOUND_OR_NOT)


def _count(response: Command) -> int:
    counts = read_header(response, _ChangedTopics)
    return counts.wipe_topic_count or counts.add_topic_count
