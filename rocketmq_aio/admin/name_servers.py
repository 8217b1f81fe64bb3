"""Name server administration: settings, stored values, write permission of brokers."""

from __future__ import annotations

from collections.abc import Mapping

from rocketmq_aio.admin.server_results import write_properties
from rocketmq_aio.admin.servers import FOUND_OR_NOT, Servers
from rocketmq_aio.config.arguments import checked_arguments
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.header import Header, RequestHeader, read_header
from rocketmq_aio.protocol.requests import operations
from rocketmq_aio.protocol.requests.admin import (
    DeleteKVConfig,
    GetKVConfig,
    GetKVConfigResponse,
    KVTable,
    PutKVConfig,
)


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
        targets = self._servers.name_servers
        return await self._servers.read_settings(targets, operations.GET_NAME_SERVER_CONFIG)

    async def update_config(self, settings: Mapping[str, str]) -> None:
        """Change settings of running name servers, in memory and in their files.

        :raises ConfigError: a server does not have one of the settings; nothing was changed
        :raises BrokerError: a setting cannot be changed while the name server runs
        """
        await self._servers.change_settings(
            self._servers.name_servers,
            settings,
            write_properties(settings),
            read=operations.GET_NAME_SERVER_CONFIG,
            change=operations.UPDATE_NAME_SERVER_CONFIG,
        )

    async def values(self, namespace: str) -> dict[str, dict[str, str]]:
        """Return all values that are stored in *namespace*."""
        header = operations.ListKVConfig(namespace=namespace)
        action, targets = f"listing values of {namespace}", self._servers.name_servers
        responses = await self._servers.request_each(action, targets, header, FOUND_OR_NOT)
        return {
            address: read_body(each.body, KVTable).table if each.body else {}
            for address, each in responses.items()
        }

    async def value(self, namespace: str, key: str) -> dict[str, str | None]:
        """Return the value of *key* in *namespace*, None where it is not stored."""
        header = GetKVConfig(namespace=namespace, key=key)
        action, targets = f"reading value {key} of {namespace}", self._servers.name_servers
        responses = await self._servers.request_each(action, targets, header, FOUND_OR_NOT)
        return {
            address: read_header(each, GetKVConfigResponse).value
            for address, each in responses.items()
        }

    async def put_value(self, namespace: str, key: str, value: str) -> None:
        """Store a value; they are kept in the file ``kvConfig.json`` of each name server."""
        header = PutKVConfig(namespace=namespace, key=key, value=value)
        action, targets = f"storing value {key} of {namespace}", self._servers.name_servers
        await self._servers.send_each(action, targets, header)

    async def delete_value(self, namespace: str, key: str) -> None:
        """Delete a value; it may be missing."""
        header = DeleteKVConfig(namespace=namespace, key=key)
        action, targets = f"deleting value {key} of {namespace}", self._servers.name_servers
        await self._servers.send_each(action, targets, header)

    async def wipe_write_permission(self, broker: str) -> dict[str, int]:
        """Take the write permission from all topics of *broker* in the routes.

        Producers stop sending to it, consumers go on: before its shutdown, for example.  It lasts
        until `add_write_permission`, or until the broker changes its topics.

        :return: the number of changed topics by name server; 0 if it does not know the broker
        :raises ConfigError: none of them knows the broker
        """
        header = operations.WipeWritePermission(broker_name=broker)
        return await self._change_permission(f"wiping permissions of {broker}", header, broker)

    async def add_write_permission(self, broker: str) -> dict[str, int]:
        """Give the write permission back to all topics of *broker*; see above."""
        header = operations.AddWritePermission(broker_name=broker)
        return await self._change_permission(f"adding permissions of {broker}", header, broker)

    async def _change_permission(
        self, action: str, header: RequestHeader, broker: str
    ) -> dict[str, int]:
        known = [each.broker_name for each in (await self._servers.cluster_info()).brokers]
        if broker not in known:
            raise ConfigError("broker", broker, f"the name server knows {known}")
        responses = await self._servers.request_each(action, self._servers.name_servers, header)
        tables = {name: read_header(each, _ChangedTopics) for name, each in responses.items()}
        return {n: each.wipe_topic_count or each.add_topic_count for n, each in tables.items()}
